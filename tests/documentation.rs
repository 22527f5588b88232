//! The documentation is complete where it claims to be, and everything that it names exists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io, time::Duration};

use axum::http::Method;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use nfs_client::FsStat;
use nfs_operator::api::backend::QuotaEnforcement;
use nfs_operator::api::names::{self, NamedObject};
use nfs_operator::api::{OrphanKind, OrphansStatus, Reason};
use nfs_operator::runtime::backend_metrics::{BackendFigures, QuotaFigures};
use nfs_operator::runtime::backend_slots::{BackendSlots, SlotUsage};
use nfs_operator::runtime::backup_metrics::BackupFigures;
use nfs_operator::runtime::metrics::Metrics;
use nfs_operator::runtime::process_metrics::ProcessMetrics;
use nfs_operator::state::copy_jobs::{CopyBackend, CopyJobs, CopyLabels, SlotRequest};
use nfs_operator::state::usage::{UsageStore, VolumeUsage};
use serde_json::Value;

type Test = Result<(), Box<dyn std::error::Error>>;

const TROUBLESHOOTING: &str = "docs/troubleshooting.md";

fn page(path: &str) -> io::Result<String> {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
}

/// Returns the sections of a page: heading without marks, and text.
fn sections(page: &str) -> BTreeMap<String, String> {
    let mut sections: BTreeMap<String, String> = BTreeMap::new();
    let mut heading = String::new();
    for line in page.lines() {
        if line.starts_with("##") {
            heading = line.trim_start_matches('#').trim().replace('`', "");
        }
        let text = sections.entry(heading.clone()).or_default();
        text.push_str(line);
        text.push('\n');
    }
    sections
}

#[test]
fn every_reason_has_its_section_with_what_is_seen_and_what_to_do() -> Test {
    let sections = sections(&page(TROUBLESHOOTING)?);
    let mut wrong = Vec::new();
    for reason in Reason::ALL {
        let Some(text) = sections.get(&reason.to_string()) else {
            wrong.push(format!("no section {reason}"));
            continue;
        };
        let is_seen = text.split("```").nth(1).is_some_and(|seen| seen.trim().contains(' '));
        if !is_seen {
            wrong.push(format!("{reason}: not what kubectl shows"));
        }
        if !text.contains("**Remedy:** ") && !text.contains("Nothing is wrong.") {
            wrong.push(format!("{reason}: neither a remedy nor the word that none is needed"));
        }
    }
    assert!(wrong.is_empty(), "{TROUBLESHOOTING}: {wrong:#?}");
    Ok(())
}

#[test]
fn every_kind_of_orphan_has_its_row_with_what_to_do() -> Test {
    let sections = sections(&page(TROUBLESHOOTING)?);
    let text = sections.get("OrphansFound").ok_or("no section")?;
    for kind in OrphanKind::ALL {
        let row = format!("| `{kind}` |");
        assert!(text.lines().any(|line| line.starts_with(&row)), "no row {row}");
    }
    Ok(())
}

/// Returns the anchor that GitHub creates for a heading.
fn anchor(heading: &str) -> String {
    let chars = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    chars.collect::<String>().to_lowercase().replace(' ', "-")
}

fn alerts() -> Result<Vec<Value>, Box<dyn std::error::Error>> {
    let rules: Value = serde_norway::from_str(&page("config/prometheus/rules.yaml")?)?;
    let groups = rules.pointer("/spec/groups").and_then(Value::as_array);
    let groups = groups.ok_or("no groups")?;
    let rules = groups.iter().filter_map(|group| group["rules"].as_array());
    Ok(rules.flatten().cloned().collect())
}

#[test]
fn every_alert_leads_to_a_section_of_the_guide() -> Test {
    let page = page(TROUBLESHOOTING)?;
    let anchors: BTreeSet<String> = sections(&page).keys().map(|heading| anchor(heading)).collect();
    let alerts = alerts()?;
    assert!(!alerts.is_empty());
    for alert in alerts {
        let runbook = alert.pointer("/annotations/runbook_url").and_then(Value::as_str);
        let (file, section) = runbook.and_then(|url| url.split_once('#')).ok_or("no runbook")?;
        assert!(file.ends_with(TROUBLESHOOTING), "{alert}");
        assert!(
            anchors.contains(section),
            "{TROUBLESHOOTING} has no section for {alert}"
        );
    }
    Ok(())
}

#[test]
fn every_alert_has_its_row_in_the_guide_to_monitoring_and_every_row_its_alert() -> Test {
    let page = page("docs/monitoring.md")?;
    let section = sections(&page).remove("When an alert fires").ok_or("no section")?;
    let rows = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let rows: Vec<&str> = rows.map(|(name, _)| name).collect();
    let mut listed = rows.clone();
    listed.sort_unstable();
    let alerts = alerts()?;
    let mut names: Vec<&str> = alerts.iter().filter_map(|rule| rule["alert"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(listed, names, "the rows of docs/monitoring.md, and the alerts");
    Ok(())
}

#[test]
fn every_alert_has_a_test_in_which_it_fires() -> Test {
    let tests: Value = serde_norway::from_str(&page("config/prometheus/rules_test.yaml")?)?;
    let tests = tests.get("tests").and_then(Value::as_array).ok_or("no tests")?;
    let cases = tests.iter().filter_map(|test| test["alert_rule_test"].as_array());
    let firing = cases
        .flatten()
        .filter(|case| case["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty()));
    let firing: BTreeSet<&str> = firing.filter_map(|case| case["alertname"].as_str()).collect();
    let alerts = alerts()?;
    let names: BTreeSet<&str> = alerts.iter().filter_map(|rule| rule["alert"].as_str()).collect();
    assert_eq!(firing, names);
    Ok(())
}

/// Returns a matcher of the label `reason`, in which the reasons have the order of [`Reason::ALL`].
fn matcher(operator: &str, is_listed: impl Fn(Reason) -> bool) -> String {
    let listed = Reason::ALL.iter().filter(|reason| is_listed(**reason));
    let listed: Vec<String> = listed.map(Reason::to_string).collect();
    format!("reason{operator}\"{}\"", listed.join("|"))
}

#[test]
fn alerts_and_dashboard_list_the_reasons_that_the_code_distinguishes() -> Test {
    let alerts = alerts()?;
    for (name, expected) in [
        ("NfsClaimsWaiting", matcher("!~", |reason| !reason.is_platform_fault())),
        (
            "NfsBackendNotReady",
            matcher("!~", |reason| {
                reason.is_intended() || reason.is_export_in_doubt() || reason.is_quota_agent_failure()
            }),
        ),
        ("NfsBackendInDoubt", matcher("=~", Reason::is_export_in_doubt)),
        ("NfsQuotaAgentDown", matcher("=~", Reason::is_quota_agent_failure)),
    ] {
        let alert = alerts.iter().find(|rule| rule["alert"] == name).ok_or(name)?;
        let query = alert["expr"].as_str().ok_or(name)?;
        assert!(query.contains(&expected), "{name} must have {expected}: {query}");
    }
    let dashboard: Value = serde_json::from_str(&page("config/prometheus/dashboard.json")?)?;
    let panels = dashboard.get("panels").and_then(Value::as_array).ok_or("no panels")?;
    let panel = panels.iter().find(|panel| panel["title"] == "Backends not Ready");
    let query = panel.and_then(|panel| panel.pointer("/targets/0/expr")?.as_str());
    let (query, expected) = (query.ok_or("no query")?, matcher("!~", Reason::is_intended));
    assert!(query.contains(&expected), "the dashboard must have {expected}: {query}");
    Ok(())
}

/// Returns all series of a running operator, as it exposes them.
fn exposition() -> Result<String, std::fmt::Error> {
    let (copy_jobs, usage) = (CopyJobs::default(), UsageStore::new(true));
    let metrics = Metrics::with_collectors(vec![
        Box::new(copy_jobs.clone()),
        Box::new(usage.clone()),
        Box::new(ProcessMetrics),
    ]);
    metrics.set_leading();
    metrics.register_class("class");
    metrics.claim_provisioned("class", "", Duration::from_secs(1));
    metrics.volume_reclaimed("class", Duration::from_secs(1));
    metrics.count_waiting(|| BTreeMap::from([("NoSpace".to_owned(), 1)]));
    let figures = BackendFigures {
        ready: true,
        reason: Reason::AllChecksPassed,
        probe_duration: Duration::ZERO,
        probe_interval: Duration::from_secs(30),
        statistics: Some(FsStat {
            total: 1,
            available: 1,
            inodes: 1,
            inodes_free: 1,
        }),
        volumes: 0,
        provisioned: 0,
        archives: Some(0),
        archived: 0,
        trash: 0,
        stuck: 0,
        unsigned_records: Some(0),
        quota: Some(QuotaFigures {
            enforce: QuotaEnforcement::Required,
            reason: Reason::QuotaAgentReady,
            pending: 0,
        }),
    };
    metrics.backends.probed("backend", &figures, Timestamp::UNIX_EPOCH);
    drop(metrics.nfs_calls.observer("backend"));
    let slots = SlotUsage {
        limit: 1,
        used: 0,
        queued: 0,
    };
    metrics.slots.read_with(move || {
        vec![BackendSlots {
            backend: "backend".to_owned(),
            work: ["claims", "reclaims", "archives"].map(|work| (work, slots)),
        }]
    });
    metrics.backups.read_with(|| BackupFigures {
        schedules: BTreeMap::from([("Scheduled".to_owned(), 1)]),
        newest: BTreeMap::from([(("team".to_owned(), "data".to_owned()), Timestamp::UNIX_EPOCH)]),
        overdue: BTreeMap::from([(("team".to_owned(), "data".to_owned()), true)]),
    });
    metrics.api_requests.record(&Method::GET, None, Duration::from_secs(1));
    let scanned = OrphansStatus {
        last_scan_time: Some(Time(Timestamp::UNIX_EPOCH)),
        ..OrphansStatus::default()
    };
    metrics
        .backends
        .scanned("backend", &scanned, Some(Duration::from_secs(1)));
    usage.enable("backend", Some(Timestamp::UNIX_EPOCH));
    let volume = PersistentVolume {
        spec: Some(PersistentVolumeSpec {
            claim_ref: Some(ObjectReference::default()),
            ..PersistentVolumeSpec::default()
        }),
        ..PersistentVolume::default()
    };
    usage.set(&volume, "backend", VolumeUsage::default());
    // A copy that never finishes.
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|_| std::fmt::Error)?;
    let of = CopyLabels {
        uid: "uid".to_owned(),
        namespace: "team".to_owned(),
        claim: "data".to_owned(),
        archive: String::new(),
    };
    let request = SlotRequest {
        namespace: "team".to_owned(),
        backends: ["backend"; 2].map(|name| CopyBackend {
            name: name.to_owned(),
            max_copies: 1,
        }),
        is_of_administrator: false,
    };
    let begin = async { copy_jobs.start(of, request, |_, _| std::future::pending(), || ()) };
    runtime.block_on(begin);
    metrics.text()
}

/// Returns the names of the series in an exposition, each with the names of its labels.
fn series(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut series: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in lines {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let labels = line.split_once('{').and_then(|(_, rest)| rest.split('}').next());
        // No value above contains a comma.
        let labels = labels.into_iter().flat_map(|labels| labels.split(','));
        let labels = labels.filter_map(|label| label.split_once('=').map(|(label, _)| label.to_owned()));
        series.entry(name.to_owned()).or_default().extend(labels);
    }
    series
}

/// Returns the names of the operator's metrics in a query.
fn metrics_in(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let prefixes = [
        "nfs_operator_",
        "controller_persistentvolume",
        "rest_client_",
        "process_",
    ];
    words.filter(move |word| prefixes.iter().any(|prefix| word.starts_with(prefix)))
}

/// Collects all texts with a key at any depth.
fn texts_under<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| texts_under(value, key, found)),
        Value::Object(fields) => {
            found.extend(fields.get(key).and_then(Value::as_str));
            fields.values().for_each(|value| texts_under(value, key, found));
        }
        _ => {}
    }
}

#[test]
fn alerts_and_dashboard_ask_for_metrics_that_exist_and_the_dashboard_for_all_of_them() -> Test {
    let series = series(&exposition()?);
    let dashboard: Value = serde_json::from_str(&page("config/prometheus/dashboard.json")?)?;
    let alerts = Value::Array(alerts()?);
    let mut shown = Vec::new();
    texts_under(&dashboard, "expr", &mut shown);
    texts_under(&dashboard, "query", &mut shown);
    let mut queries = shown.clone();
    texts_under(&alerts, "expr", &mut queries);
    let queried: BTreeSet<&str> = queries.iter().flat_map(|query| metrics_in(query)).collect();
    assert!(queried.len() > 10, "{queried:?}");
    let missing: Vec<_> = queried.iter().filter(|name| !series.contains_key(**name)).collect();
    assert!(missing.is_empty(), "no such metrics: {missing:?}");
    let shown: BTreeSet<&str> = shown.iter().flat_map(|query| metrics_in(query)).collect();
    let of_histogram = |name: &str| name.ends_with("_seconds_sum") || name.ends_with("_seconds_count");
    let unseen: Vec<_> = series
        .keys()
        .filter(|name| !shown.contains(name.as_str()) && !of_histogram(name))
        .collect();
    assert!(unseen.is_empty(), "the dashboard lacks {unseen:?}");
    Ok(())
}

#[test]
fn the_dashboard_shows_one_cluster_even_if_its_prometheus_has_several() -> Test {
    let dashboard: Value = serde_json::from_str(&page("config/prometheus/dashboard.json")?)?;
    let mut queries = Vec::new();
    texts_under(&dashboard, "expr", &mut queries);
    texts_under(&dashboard, "query", &mut queries);
    // This one finds the clusters.
    queries.retain(|query| *query != "label_values(nfs_operator_leader, cluster)");
    let of_any_cluster: Vec<_> = queries
        .iter()
        .filter(|query| query.matches("{cluster=\"$cluster\"").count() != metrics_in(query).count())
        .collect();
    assert!(of_any_cluster.is_empty(), "without the cluster: {of_any_cluster:#?}");
    Ok(())
}

#[test]
fn a_standby_has_only_the_metrics_about_its_process() -> Test {
    let (copy_jobs, usage) = (CopyJobs::default(), UsageStore::new(true));
    let metrics = Metrics::with_collectors(vec![Box::new(copy_jobs), Box::new(usage), Box::new(ProcessMetrics)]);
    metrics.api_requests.record(&Method::GET, None, Duration::from_secs(1));
    let text = metrics.text()?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let names: BTreeSet<&str> = lines.filter_map(|line| line.split(['{', ' ']).next()).collect();
    let of_process = |name: &str| name.starts_with("rest_client_") || name.starts_with("process_");
    let others: Vec<&str> = names.into_iter().filter(|name| !of_process(name)).collect();
    let expected = ["build_info", "copied_bytes_total", "leader", "reused_bytes_total"];
    assert_eq!(others, expected.map(|name| format!("nfs_operator_{name}")));
    Ok(())
}

/// Collects the names of all functions that are tests.
fn tests_below(folder: &Path, names: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            tests_below(&path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let mut lines = text.lines().map(str::trim);
            while let Some(line) = lines.next() {
                if !line.starts_with("#[test]") && !line.starts_with("#[tokio::test") {
                    continue;
                }
                let function = lines
                    .find_map(|line| line.split_once("fn ")?.1.split_once('('))
                    .map(|(name, _)| name);
                names.extend(function.map(str::to_owned));
            }
        }
    }
    Ok(())
}

/// Returns the names of the tests in a pod, which have their own test harness.
fn tests_in_a_pod(program: &str) -> impl Iterator<Item = &str> {
    let trials = program.split("self.trial(").skip(1);
    trials.filter_map(|trial| trial.split('"').nth(1))
}

/// Returns the names in backticks in the last column of each table whose header calls that column `tests`.
fn named_tests(page: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut lists_tests = false;
    let mut in_table = false;
    for line in page.lines() {
        let row = line.trim_end().strip_suffix('|').and_then(|row| row.rsplit('|').next());
        match row {
            Some(header) if !in_table => lists_tests = header.trim() == "tests",
            Some(cell) if lists_tests => names.extend(cell.split('`').skip(1).step_by(2)),
            _ => {}
        }
        in_table = row.is_some();
    }
    names
}

/// Returns the names of all tests of the repository.
fn all_tests(root: &Path) -> io::Result<BTreeSet<String>> {
    let mut tests = BTreeSet::new();
    for folder in ["src", "tests", "crates"] {
        let folder = root.join(folder);
        if folder.is_dir() {
            tests_below(&folder, &mut tests)?;
        }
    }
    tests.extend(tests_in_a_pod(&page("tests/pod/main.rs")?).map(str::to_owned));
    Ok(tests)
}

#[test]
fn every_test_that_a_page_names_exists() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = all_tests(root)?;
    for (page, at_least) in [("docs/parity.md", 80), ("docs/security.md", 30)] {
        let text = fs::read_to_string(root.join(page))?;
        let named = named_tests(&text);
        assert!(named.len() > at_least, "{page} names only {}", named.len());
        let missing: Vec<_> = named.iter().filter(|name| !tests.contains(**name)).collect();
        assert!(missing.is_empty(), "{page} names tests that do not exist: {missing:?}");
    }
    Ok(())
}

/// The rules of docs/data-safety.md: number and the tests listed below it.
fn data_safety_rules(page: &str) -> BTreeMap<u32, Vec<&str>> {
    let sections = page.split("\n## ").skip(1);
    let rules = sections.filter_map(|section| {
        let number = section.split_once(". ")?.0.parse().ok()?;
        let items = section
            .lines()
            .filter_map(|line| line.strip_prefix("- `")?.strip_suffix('`'));
        Some((number, items.collect()))
    });
    rules.collect()
}

#[test]
fn every_data_safety_rule_lists_tests_that_exist() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = all_tests(root)?;
    let text = page("docs/data-safety.md")?;
    let rules = data_safety_rules(&text);
    assert_eq!(rules.keys().copied().collect::<Vec<_>>(), (1..=29).collect::<Vec<_>>());
    for (number, named) in rules {
        assert!(named.len() >= 3, "rule {number} lists only {named:?}");
        let missing: Vec<_> = named.iter().filter(|name| !tests.contains(**name)).collect();
        assert!(
            missing.is_empty(),
            "rule {number} lists tests that do not exist: {missing:?}"
        );
    }
    Ok(())
}

#[test]
fn the_reference_is_made_from_the_crds() -> Test {
    let created = rig::api_reference::render(&page("crds/nfs-operator.yaml")?)?;
    assert!(
        page("docs/reference.md")? == created,
        "docs/reference.md: run `make docs`"
    );
    Ok(())
}

/// Adds all Markdown files in a folder and its subfolders, except build output and hidden folders.
fn markdown_below(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "dist" {
            markdown_below(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    Ok(())
}

/// Maximum length of a line of prose in Markdown.
const COLUMNS: usize = 100;

/// Returns the numbers of the lines of prose that are too long. Fenced blocks, tables, headings, comments, and lines
/// that cannot be broken, such as a long link, may have any length.
fn long_lines(page: &str) -> Vec<usize> {
    let mut is_fenced = false;
    let mut long = Vec::new();
    for (line, number) in page.lines().zip(1..) {
        let text = line.trim_start();
        if text.starts_with("```") {
            is_fenced = !is_fenced;
        }
        let is_prose = !is_fenced && !text.starts_with(['|', '#']) && !text.starts_with("<!--");
        let text = text.trim_start_matches(['-', '*', ' ']);
        let is_one_link = (text.starts_with('[') || text.starts_with("![")) && text.find("](") > text.rfind(' ');
        let is_breakable = text.contains(' ') && !is_one_link;
        if is_prose && is_breakable && line.chars().count() > COLUMNS {
            long.push(number);
        }
    }
    long
}

#[test]
fn markdown_is_wrapped_at_100_columns() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    markdown_below(root, &mut files)?;
    assert!(files.len() > 30, "only {files:?}");
    let mut long = Vec::new();
    for file in files {
        let lines = long_lines(&fs::read_to_string(&file)?);
        let name = file.strip_prefix(root).unwrap_or(&file).display();
        long.extend(lines.iter().map(|line| format!("{name}:{line}")));
    }
    assert!(long.is_empty(), "wrap these lines at {COLUMNS} columns: {long:#?}");
    Ok(())
}

#[test]
fn only_prose_is_wrapped() {
    let words = "word ".repeat(30);
    let path = "path/".repeat(30);
    for (page, expected) in [
        (words.clone(), vec![1]),
        (format!("# Title\n\n- {words}"), vec![3]),
        (format!("```sh\n{words}\n```\n{words}"), vec![4]),
        (format!("# {words}\n| {words} |\n<!-- {words} -->"), vec![]),
        (format!("- [a link](https://example.com/{path})\n{path}"), vec![]),
        (format!("see [a link](https://example.com/{path})"), vec![1]),
    ] {
        assert_eq!(long_lines(&page), expected, "{page}");
    }
}

/// Returns the table of the names on one kind of object.
fn table_of_names(object: NamedObject) -> String {
    let mut table = "| name | kind | set by | acted on by | meaning |\n|---|---|---|---|---|\n".to_owned();
    for name in names::ALL.iter().filter(|name| name.object == object) {
        let kind = format!("{:?}", name.kind).to_lowercase();
        let meaning = name.meaning.trim();
        table += &format!(
            "| `{}` | {kind} | {} | {} | {meaning} |\n",
            name.key, name.written_by, name.read_by
        );
    }
    table
}

const ONE_SHOT_REQUESTS: &str = "\
## One-shot requests

Some annotations of a backend request something once. The operator handles each value once and lists
it in `status.handledRequests`, with the name of the annotation without its prefix. It never changes
or removes such an annotation, so that it may be part of a manifest that Argo CD or Flux applies. A
value that was handled has no effect any more, also after a restart of the operator, and also if the
annotation is removed and set again. To repeat a request, set another value:

```sh
kubectl annotate --overwrite nfsb NAME nfs-operator.io/scan-requested-at=\"$(date -Is)\"
kubectl get nfsb NAME -o jsonpath='{.status.handledRequests}'
```

The value of a `…-requested-at` annotation is any text. An annotation that decides about data names
what it refers to: an identity, records, or volumes. To request the same once more, append `@` and
any text, which has no other meaning: `nfs-operator.io/accept-identity=ID@2`.

`accept-identity`, `adopt-record` and `accept-directories` accept what the backend reports. If a
backend is created with one of them, because its manifest still has it, the operator ignores that
value, and reports it in `status.handledRequests`: there is nothing yet that it could accept.

A request that cannot be carried out yet, for example because the server is down, stays open until
it can, or until you remove the annotation or change its value.
";

/// Returns docs/annotations.md.
fn page_of_names() -> String {
    let introduction = "\
# Annotations, labels, finalizers and conditions

This page lists every name that the operator writes or reads on an object, apart from the conditions
of its own kinds ([reference](reference.md)). `make docs` generates it from the code.
";
    let sections = [
        ("PersistentVolumeClaims", NamedObject::Claim),
        ("PersistentVolumes", NamedObject::Volume),
        ("NfsBackends", NamedObject::Backend),
        ("NfsArchives", NamedObject::Archive),
        ("NfsBackups", NamedObject::Backup),
        ("Namespaces", NamedObject::Namespace),
        ("CSIStorageCapacities", NamedObject::StorageCapacity),
    ];
    let tables = sections
        .iter()
        .fold(introduction.to_owned(), |page, (heading, object)| {
            format!("{page}\n## {heading}\n\n{}", table_of_names(*object))
        });
    format!("{tables}\n{ONE_SHOT_REQUESTS}")
}

/// Returns docs/reasons.md.
fn page_of_reasons() -> String {
    let introduction = "\
# Reasons

This page lists the reasons of all conditions, and of all events about backends, claims, volumes,
archives, backups and schedules. A reason has the same meaning wherever it occurs. The link leads to
an example of its message and to the remedy. `make docs` generates this page from the code.

| reason | meaning |
|---|---|
";
    let mut reasons = Reason::ALL.to_vec();
    reasons.sort_by_key(ToString::to_string);
    reasons.into_iter().fold(introduction.to_owned(), |page, reason| {
        let anchor = reason.to_string().to_lowercase();
        let meaning = reason.meaning().trim();
        format!("{page}| [`{reason}`](troubleshooting.md#{anchor}) | {meaning} |\n")
    })
}

/// Returns docs/metrics.md.
fn page_of_metrics() -> Result<String, std::fmt::Error> {
    let introduction = "\
# Metrics

This page lists the metrics of the operator; [Operations](operations.md#what-is-measured) describes
the endpoint, and [Monitoring](monitoring.md) alerts and dashboard. `make docs` generates it from
the code.

The `controller_…` names are those of the Kubernetes provisioner library, the `rest_client_…` names
those of Kubernetes' Go client, and the `process_…` names those of all Prometheus client libraries,
so that dashboards made for them keep working. The label `source` is the kind of the claim's data
source, `PersistentVolumeClaim`, `NfsArchive` or `NfsBackup`, and empty without one.

| metric | type | labels | meaning |
|---|---|---|---|
";
    let text = exposition()?;
    let series = series(&text);
    let mut rows = BTreeMap::new();
    let mut help = "";
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            // The samples of a counter and of a histogram have a suffix.
            let (shown, sampled) = match kind {
                "counter" => (format!("{name}_total"), format!("{name}_total")),
                "histogram" => (name.to_owned(), format!("{name}_count")),
                _ => (name.to_owned(), name.to_owned()),
            };
            let labels = series.get(&sampled).ok_or(std::fmt::Error)?.iter();
            let labels: Vec<_> = labels.map(|label| format!("`{label}`")).collect();
            let row = format!(
                "| `{shown}` | {kind} | {} | {}. |\n",
                labels.join(", "),
                help.trim_end_matches('.')
            );
            rows.insert(shown, row);
        }
    }
    Ok(rows
        .into_values()
        .fold(introduction.to_owned(), |page, row| page + &row))
}

/// Compares a page with what is generated from the code. With WRITE, writes it.
fn assert_generated(name: &str, generated: &str) -> io::Result<()> {
    if std::env::var_os("WRITE").is_some() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(name), generated)?;
    }
    assert!(page(name)? == generated, "{name}: run `make docs`");
    Ok(())
}

#[test]
fn the_generated_page_of_annotations_is_up_to_date() -> io::Result<()> {
    assert_generated("docs/annotations.md", &page_of_names())
}

#[test]
fn the_generated_page_of_metrics_is_up_to_date() -> Test {
    Ok(assert_generated("docs/metrics.md", &page_of_metrics()?)?)
}

#[test]
fn the_generated_page_of_reasons_is_up_to_date() -> io::Result<()> {
    assert_generated("docs/reasons.md", &page_of_reasons())
}
