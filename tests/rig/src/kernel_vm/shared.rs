//! One virtual machine for all tests of a process.

use tokio::sync::OnceCell;

use super::KernelVm;
use crate::{
    background::start_in_background,
    error::{Error, Result},
    run_dir::RunDir,
};

impl KernelVm {
    /// Returns the process's machine, for a test that changes neither other tests' directories nor the server. A test
    /// that stops the server or changes its exports starts a machine of its own ([`KernelVm::start`]): if it fails, the
    /// server stays stopped, and what other tests run in a mount would wait for it.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: SharedMachine = OnceCell::const_new();
        shared(&SHARED, start).await
    }

    /// Returns the process's machine with ZFS, for a test with file systems of its own.
    pub async fn shared_with_zfs() -> Result<&'static Self> {
        static SHARED: SharedMachine = OnceCell::const_new();
        shared(&SHARED, start_with_zfs).await
    }
}

type SharedMachine = OnceCell<Result<(KernelVm, RunDir), String>>;

/// Returns the machine. The first caller starts it. A failed start is not retried and fails every test.
async fn shared<F>(machine: &'static SharedMachine, start: fn() -> F) -> Result<&'static KernelVm>
where
    F: Future<Output = Result<(KernelVm, RunDir)>> + 'static,
{
    let started = machine
        .get_or_init(|| start_in_background("shared machine", start))
        .await;
    let started = started.as_ref().map_err(|error| Error::SharedStart(error.clone()));
    started.map(|(vm, _)| vm)
}

async fn start() -> Result<(KernelVm, RunDir)> {
    let run = RunDir::new()?;
    Ok(logged(KernelVm::start(&run).await?, run))
}

async fn start_with_zfs() -> Result<(KernelVm, RunDir)> {
    let run = RunDir::new()?;
    Ok(logged(KernelVm::start_with_zfs(&run).await?, run))
}

fn logged(vm: KernelVm, run: RunDir) -> (KernelVm, RunDir) {
    eprintln!("rig: kernel log of the virtual machine: {}", vm.log().display());
    (vm, run)
}
