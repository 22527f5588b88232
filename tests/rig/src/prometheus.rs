//! A Prometheus that scrapes an operator and evaluates rules.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    assets::Assets,
    error::{Error, Result, ResultExt},
    ports,
    process::{Process, ProcessSpec, while_running},
    run_dir::RunDir,
    wait,
};

/// It takes a second on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// A query of few series takes milliseconds.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// A running Prometheus on the loopback interface. Dropping it kills it.
#[derive(Debug)]
pub struct Prometheus {
    _process: Process,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts it, with a target that it scrapes every second and a file of rules that it evaluates every second.
    /// Downloads the program if necessary.
    ///
    /// # Errors
    /// [`Error::Missing`] if it cannot be downloaded.
    pub async fn start(run: &RunDir, target: SocketAddr, rules: &Path) -> Result<Self> {
        let program = Assets::find_or_install_prometheus().await?;
        let folder = run.new_dir("prometheus")?;
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules],
            "scrape_configs": [{"job_name": "nfs-operator", "static_configs": [{"targets": [target.to_string()]}]}],
        });
        let file = folder.join("prometheus.yml");
        // JSON is YAML.
        fs::write(&file, config.to_string()).with_context(|| format!("write {}", file.display()))?;
        let address = SocketAddr::from(([127, 0, 0, 1], ports::free()?));
        let args = [
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", folder.join("data").display()),
            format!("--web.listen-address={address}"),
        ];
        let process = Process::start(ProcessSpec::new("prometheus", program, args, folder.join("log"))).await?;
        let started = wait::until("Prometheus to be ready", START_TIMEOUT, async || {
            let ready = client().map_err(|error| error.to_string())?;
            let ready = ready.get(format!("http://{address}/-/ready")).send().await;
            let ready = ready.and_then(reqwest::Response::error_for_status);
            ready.map(drop).map_err(|error| error.to_string())
        });
        while_running(&[&process], started).await?;
        Ok(Self {
            _process: process,
            address,
        })
    }

    /// Returns the series that a query returns now.
    ///
    /// # Errors
    /// The query is invalid.
    pub async fn query(&self, query: &str) -> Result<Vec<Value>> {
        let body = format!("query={}", percent_encoded(query));
        let request = client()?.post(format!("http://{}/api/v1/query", self.address));
        let request = request
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body);
        let data = answer(request, query).await?;
        Ok(data
            .get("result")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default())
    }

    /// Returns the rules, each with its state and its last error.
    pub async fn rules(&self) -> Result<Vec<Value>> {
        let data = answer(client()?.get(format!("http://{}/api/v1/rules", self.address)), "rules").await?;
        let groups = data.get("groups").and_then(Value::as_array).into_iter().flatten();
        let rules = groups.filter_map(|group| group["rules"].as_array());
        Ok(rules.flatten().cloned().collect())
    }
}

fn client() -> Result<reqwest::Client> {
    let client = reqwest::Client::builder().timeout(QUERY_TIMEOUT).no_proxy().build();
    client.with_context(|| "create an HTTP client".to_owned())
}

/// An answer of the [HTTP API](https://prometheus.io/docs/prometheus/latest/querying/api/).
#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Answer {
    Success { data: Value },
    Error { error: String },
}

/// Returns the data of an answer.
async fn answer(request: reqwest::RequestBuilder, what: &str) -> Result<Value> {
    let response = request
        .send()
        .await
        .with_context(|| format!("ask Prometheus for {what}"))?;
    let body = response
        .text()
        .await
        .with_context(|| format!("read the answer to {what}"))?;
    let answer: Answer = serde_json::from_str(&body).with_context(|| format!("parse the answer to {what}"))?;
    match answer {
        Answer::Success { data } => Ok(data),
        Answer::Error { error } => Err(Error::Usage(format!("Prometheus refuses {what}: {error}"))),
    }
}

fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
}
