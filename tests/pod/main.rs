#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! The operator as people run it: installed with Helm, in a pod of its image, on a node with a kubelet.
//!
//! The whole cluster is in an enclosure (network, mounts, processes of its own), and so is this program: it runs
//! itself again in there. The tests come one after the other, since one operator serves a cluster.

mod failover;
mod installation;
mod policies;
mod stage;
mod upgrade;

use std::{ffi::OsString, panic::AssertUnwindSafe, path::PathBuf, process::ExitCode, sync::Arc};

use futures::FutureExt as _;
use libtest_mimic::{Arguments, Failed, Trial};
use rig::{
    Assets, Sandbox,
    assets::{Helm, NodeAssets},
    node::exit_code,
};
use stage::{Programs, Stage};
use tokio::runtime::Runtime;

/// What a test comes to.
pub type Test = Result<(), Failure>;
/// Why one failed.
pub type Failure = Box<dyn std::error::Error>;

/// Names the OCI archive of the image; `make test-pod` builds one.
const IMAGE: &str = "NFS_OPERATOR_IMAGE";

fn main() -> ExitCode {
    let Some(image) = std::env::var_os(IMAGE) else {
        eprintln!("left out here: the tests in a pod, which `make test-pod` runs ({IMAGE} names no image)");
        return ExitCode::SUCCESS;
    };
    match run(image.into()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(image: PathBuf) -> Result<ExitCode, Failure> {
    let runtime = Runtime::new()?;
    // Looked for twice: outside there is a network to get by it what is missing.
    let programs = runtime.block_on(async {
        Ok::<_, Failure>(Programs {
            cluster: Assets::find_or_install().await?,
            node: NodeAssets::find_or_install().await?,
            helm: Helm::V4.find_or_build().await?,
        })
    })?;
    if Sandbox::current().is_none() {
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let status = Sandbox::run(&std::env::current_exe()?, arguments)?;
        return Ok(ExitCode::from(exit_code(status)));
    }
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    let stage = runtime.block_on(Stage::start(programs, &image))?;
    let tests = Tests {
        runtime: Arc::new(runtime),
        stage: Arc::new(stage),
    };
    let conclusion = libtest_mimic::run(&arguments, tests.all());
    tests.runtime.block_on(tests.stage.end(conclusion.has_failed()))?;
    Ok(conclusion.exit_code())
}

/// What all tests have together.
struct Tests {
    runtime: Arc<Runtime>,
    stage: Arc<Stage>,
}

impl Tests {
    /// In the order of a life: installed, upgraded, in trouble, uninstalled.
    fn all(&self) -> Vec<Trial> {
        vec![
            self.one(
                "helm_install_gives_a_ready_pod_and_claims_are_bound",
                installation::is_ready,
            ),
            self.one("a_helm_upgrade_loses_no_claim_in_flight", upgrade::loses_no_claim),
            self.one(
                "the_standby_takes_over_when_the_leaders_pod_is_deleted",
                failover::takes_over,
            ),
            self.one(
                "work_is_resumed_when_the_container_was_killed",
                failover::resumes_after_a_kill,
            ),
            self.one(
                "work_is_resumed_when_the_pod_was_out_of_memory",
                failover::resumes_after_no_memory,
            ),
            self.one(
                "with_its_network_policy_the_operator_reaches_the_ports_that_its_values_name_and_no_others",
                policies::reaches_what_it_needs,
            ),
            self.one(
                "pods_that_the_charts_network_policies_shut_out_reach_neither_nfs_servers_nor_metrics",
                policies::shuts_others_out,
            ),
            self.one(
                "helm_uninstall_leaves_kinds_backends_volumes_and_data",
                installation::is_uninstalled,
            ),
        ]
    }

    fn one<T>(&self, name: &str, test: T) -> Trial
    where
        T: AsyncFnOnce(&Stage) -> Test + Send + 'static,
    {
        let (runtime, stage) = (self.runtime.clone(), self.stage.clone());
        Trial::test(name, move || {
            runtime.block_on(async {
                let ended = AssertUnwindSafe(test(&stage)).catch_unwind().await;
                let failed = match ended {
                    Ok(Ok(())) => return stage.cleared().await.map_err(|error| Failed::from(error.to_string())),
                    Ok(Err(error)) => error.to_string(),
                    Err(panic) => told(&*panic),
                };
                stage.report().await;
                // So that the next test is judged by itself.
                let _cleared = stage.cleared().await;
                Err(Failed::from(failed))
            })
        })
    }
}

/// What a panic said.
fn told(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "it panicked".into())
}
