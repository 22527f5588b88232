//! NFS round trips of a claim, a Delete and an Archive, counted by a proxy before the NFS server. In a phase of its own,
//! because the proxy takes CPU time.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::json;

use super::{BenchOptions, Policy, env::BenchEnv, progress, table, workload};
use crate::{
    error::Result,
    nfs_server::Export,
    operator::Operator,
    proxy::{Action, Direction, Proxy},
    run_dir::RunDir,
};

/// The name of the class and backend.
const NAME: &str = "counted";
/// Number of claims. Renewals of the session's lease are few in comparison.
const CLAIMS: usize = 50;

/// Requests to the NFS server: each is one round trip.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pub claim: f64,
    /// Including those that remove the content, a file, in the background.
    pub delete: f64,
    pub archive: f64,
}

impl Costs {
    /// Returns the costs as a table.
    pub fn table(&self) -> String {
        let number = |cost: f64| format!("{cost:.2}");
        table::counts(&[
            ("NFS round trips per claim", number(self.claim)),
            (
                "NFS round trips per Delete, with the removal of a file",
                number(self.delete),
            ),
            ("NFS round trips per Archive", number(self.archive)),
        ])
    }
}

/// Counts the requests on a backend of its own.
pub async fn measure(env: &mut BenchEnv, run: &RunDir, options: &BenchOptions) -> Result<Costs> {
    progress("NFS round trips");
    env.stop_binder().await?;
    env.nfs.add_export(Export::new(format!("/{NAME}"))).await?;
    let proxy = Proxy::start(env.nfs.address()).await?;
    let sent = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&sent);
    proxy.on_record(Direction::Up, move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        Action::Forward
    });
    // Without probes in between.
    let fields = json!({ "spec": { "probeInterval": "1h" } });
    env.create_backend(NAME, &format!("/{NAME}"), proxy.port(), fields)
        .await?;
    env.create_class(NAME, json!({ "backend": NAME })).await?;
    let operator = env.start_operator(run).await?;
    env.wait_backend_ready(NAME).await?;
    let options = BenchOptions {
        count: CLAIMS,
        ..options.clone()
    };
    let take = || sent.swap(0, Ordering::Relaxed) as f64 / CLAIMS as f64;
    // The first volumes create directories of the operator.
    cycle(env, &operator, &options, Policy::Archive, take).await?;
    let (claim, archive) = cycle(env, &operator, &options, Policy::Archive, take).await?;
    let (_, delete) = cycle(env, &operator, &options, Policy::Delete, take).await?;
    operator.terminate().await?;
    Ok(Costs { claim, delete, archive })
}

/// Creates and deletes claims, and returns the requests of each claim and of each deletion.
async fn cycle(
    env: &BenchEnv,
    operator: &Operator,
    options: &BenchOptions,
    policy: Policy,
    take: impl Fn() -> f64,
) -> Result<(f64, f64)> {
    env.set_policy_of(NAME, policy).await?;
    env.wait_idle(operator).await?;
    take();
    let (claims, ..) = workload::create(env, options, NAME).await?;
    env.wait_idle(operator).await?;
    let creation = take();
    workload::bind(env, &claims, options).await?;
    workload::prepare_release(env, &claims, options).await?;
    env.wait_idle(operator).await?;
    take();
    workload::release(env, &claims, options).await?;
    workload::wait_deleted(env, &claims).await?;
    env.wait_idle(operator).await?;
    Ok((creation, take()))
}
