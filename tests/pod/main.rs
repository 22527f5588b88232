#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! The operator in production form: installed with Helm, in a pod of its image, on a node with a kubelet.
//!
//! The whole cluster and this program run in a sandbox (network, mounts, processes): the program runs itself again
//! in there. The tests run one after the other, because a cluster has one operator.

mod env;
mod failover;
mod helm_3;
mod installation;
mod policies;
mod probe;
mod upgrade;

use std::{ffi::OsString, panic::AssertUnwindSafe, path::PathBuf, process::ExitCode, sync::Arc};

use env::{PodEnv, Programs};
use futures::FutureExt as _;
use libtest_mimic::{Arguments, Failed, Trial};
use rig::{
    Assets, Sandbox,
    assets::{Helm, NodeAssets},
    node::exit_code,
};
use tokio::runtime::Runtime;

/// The result of a test.
pub type Test = Result<(), Failure>;
/// The error of a test.
pub type Failure = Box<dyn std::error::Error>;

/// Environment variable with the OCI archive of the image, which `make test-pod` builds.
const IMAGE: &str = "NFS_OPERATOR_IMAGE";

fn main() -> ExitCode {
    let Some(image) = std::env::var_os(IMAGE) else {
        eprintln!("skipped: the tests in a pod, because {IMAGE} is not set; run `make test-pod`");
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
    // Both processes look for the programs, but only the one outside has a network to download them.
    let programs = runtime.block_on(async {
        Ok::<_, Failure>(Programs {
            cluster: Assets::find_or_install().await?,
            node: NodeAssets::find_or_install().await?,
            helm: Helm::V4.find_or_build().await?,
            helm_3: Helm::V3.find_or_build().await?,
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
    let env = runtime.block_on(PodEnv::start(programs, &image))?;
    let tests = Tests {
        runtime: Arc::new(runtime),
        env: Arc::new(env),
    };
    let conclusion = libtest_mimic::run(&arguments, tests.all());
    tests.runtime.block_on(tests.env.stop(conclusion.has_failed()))?;
    Ok(conclusion.exit_code())
}

/// The environment and runtime of all tests.
struct Tests {
    runtime: Arc<Runtime>,
    env: Arc<PodEnv>,
}

impl Tests {
    /// In the order of an installation's life: install, upgrade, failures, uninstall.
    fn all(&self) -> Vec<Trial> {
        vec![
            self.trial(
                "helm_install_gives_a_ready_pod_and_claims_are_bound",
                installation::becomes_ready,
            ),
            self.trial(
                "kubectl_nfs_probe_runs_in_a_pod_like_the_operators",
                probe::prints_findings,
            ),
            self.trial("a_helm_upgrade_loses_no_claim_in_flight", upgrade::keeps_pending_claims),
            self.trial("a_helm_rollback_loses_no_claim_in_flight", upgrade::rolls_back),
            self.trial(
                "helm_3_installs_upgrades_the_kinds_too_rolls_back_and_uninstalls",
                helm_3::manages_a_release,
            ),
            self.trial(
                "the_standby_takes_over_when_the_leaders_pod_is_deleted",
                failover::takes_over,
            ),
            self.trial(
                "work_is_resumed_when_the_container_was_killed",
                failover::resumes_after_a_kill,
            ),
            self.trial(
                "work_is_resumed_when_the_pod_was_out_of_memory",
                failover::resumes_after_out_of_memory,
            ),
            self.trial(
                "with_its_network_policy_the_operator_reaches_the_ports_that_its_values_name_and_no_others",
                policies::operator_reaches_named_ports_only,
            ),
            self.trial(
                "pods_that_the_charts_network_policies_shut_out_reach_neither_nfs_servers_nor_metrics",
                policies::other_pods_are_denied,
            ),
            self.trial(
                "helm_uninstall_leaves_kinds_backends_volumes_and_data_which_the_bundle_of_a_release_takes_over",
                installation::uninstall_keeps_data_that_the_bundle_takes_over,
            ),
        ]
    }

    fn trial<T>(&self, name: &str, test: T) -> Trial
    where
        T: AsyncFnOnce(&PodEnv) -> Test + Send + 'static,
    {
        let (runtime, env) = (self.runtime.clone(), self.env.clone());
        Trial::test(name, move || {
            runtime.block_on(async {
                let result = AssertUnwindSafe(test(&env)).catch_unwind().await;
                let error = match result {
                    Ok(Ok(())) => return env.clean_up().await.map_err(|error| Failed::from(error.to_string())),
                    Ok(Err(error)) => error.to_string(),
                    Err(panic) => panic_message(&*panic),
                };
                env.print_diagnostics().await;
                // A failed test must not affect the next one.
                let _ = env.clean_up().await;
                Err(Failed::from(error))
            })
        })
    }
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "panic without a message".into())
}
