//! One virtual machine for all tests of a process.

use std::ops::Deref;

use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::KernelVm;
use crate::{
    background::start_in_background,
    error::{Error, Result},
    run_dir::RunDir,
};

/// Shared by many tests, or exclusive to one that restarts the NFS server.
static LOCK: RwLock<()> = RwLock::const_new(());

/// The machine, shared with other tests.
#[derive(Debug)]
pub struct SharedKernelVm {
    vm: &'static KernelVm,
    _guard: RwLockReadGuard<'static, ()>,
}

/// The machine, used by one test only.
#[derive(Debug)]
pub struct ExclusiveKernelVm {
    vm: &'static KernelVm,
    _guard: RwLockWriteGuard<'static, ()>,
}

impl Deref for SharedKernelVm {
    type Target = KernelVm;

    fn deref(&self) -> &KernelVm {
        self.vm
    }
}

impl Deref for ExclusiveKernelVm {
    type Target = KernelVm;

    fn deref(&self) -> &KernelVm {
        self.vm
    }
}

impl KernelVm {
    /// Returns the process's machine, for a test that changes neither other tests' directories nor the server.
    pub async fn shared() -> Result<SharedKernelVm> {
        let vm = plain().await?;
        Ok(SharedKernelVm {
            vm,
            _guard: LOCK.read().await,
        })
    }

    /// Returns the process's machine with ZFS, for a test with file systems of its own.
    pub async fn shared_with_zfs() -> Result<&'static Self> {
        static SHARED: SharedMachine = OnceCell::const_new();
        shared(&SHARED, start_with_zfs).await
    }

    /// Returns the process's machine when no other test uses it, for a test that restarts the server or changes its
    /// exports.
    pub async fn exclusive() -> Result<ExclusiveKernelVm> {
        let vm = plain().await?;
        Ok(ExclusiveKernelVm {
            vm,
            _guard: LOCK.write().await,
        })
    }
}

type SharedMachine = OnceCell<Result<(KernelVm, RunDir), String>>;

async fn plain() -> Result<&'static KernelVm> {
    static SHARED: SharedMachine = OnceCell::const_new();
    shared(&SHARED, start).await
}

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
