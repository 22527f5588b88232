//! One machine for all tests of a process.

use std::{future::pending, ops::Deref};

use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard, oneshot};

use super::KernelVm;
use crate::{
    error::{Error, Result},
    run_dir::RunDir,
};

/// Who uses the machine: many tests at a time, or one that restarts its server.
static USERS: RwLock<()> = RwLock::const_new(());

/// The machine, beside other tests.
#[derive(Debug)]
pub struct SharedKernelVm {
    vm: &'static KernelVm,
    _use: RwLockReadGuard<'static, ()>,
}

/// The machine, and no other test uses it.
#[derive(Debug)]
pub struct ExclusiveKernelVm {
    vm: &'static KernelVm,
    _use: RwLockWriteGuard<'static, ()>,
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
    /// This process' machine, for a test that leaves the others' directories and the server alone.
    pub async fn shared() -> Result<SharedKernelVm> {
        let vm = shared().await?;
        Ok(SharedKernelVm {
            vm,
            _use: USERS.read().await,
        })
    }

    /// This process' machine, for a test that restarts its server or changes what it offers: waits for the others.
    pub async fn exclusive() -> Result<ExclusiveKernelVm> {
        let vm = shared().await?;
        Ok(ExclusiveKernelVm {
            vm,
            _use: USERS.write().await,
        })
    }
}

/// Started by who asks first. A failed start is every test's failure, tried once.
async fn shared() -> Result<&'static KernelVm> {
    static SHARED: OnceCell<Result<(KernelVm, RunDir), String>> = OnceCell::const_new();
    let started = SHARED.get_or_init(|| async {
        let (report, started) = oneshot::channel();
        // A runtime of its own: that of the test that came first ends with it.
        let thread = std::thread::Builder::new()
            .name("shared machine".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => runtime.block_on(async {
                        let started = start().await.map_err(|error| error.to_string());
                        // Nobody waits when the asking test was cancelled.
                        let _told = report.send(started);
                        pending::<()>().await;
                    }),
                    Err(error) => drop(report.send(Err(error.to_string()))),
                }
            });
        match thread {
            Ok(_) => started.await.unwrap_or_else(|_| Err("its thread ended".into())),
            Err(error) => Err(error.to_string()),
        }
    });
    let started = started.await.as_ref();
    started
        .map(|(vm, _)| vm)
        .map_err(|error| Error::SharedStart(error.clone()))
}

async fn start() -> Result<(KernelVm, RunDir)> {
    let run = RunDir::new()?;
    let vm = KernelVm::start(&run).await?;
    eprintln!("rig: the machine's kernel log is {}", vm.log().display());
    Ok((vm, run))
}
