//! Starting something that all tests of a process share.

use std::future::{Future, pending};

use tokio::sync::oneshot;

use crate::error::Result;

/// Runs `start` on its own thread and runtime, which live until the process exits. The runtime of the test that calls
/// this ends with that test, and so do its tasks.
///
/// # Errors
/// The text of the error, since every test reports it.
pub(crate) async fn start_in_background<T, F>(name: &str, start: fn() -> F) -> Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + 'static,
{
    let (sender, started) = oneshot::channel();
    let run = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(async {
            // The receiver is gone if the calling test was cancelled.
            let _ = sender.send(start().await.map_err(|error| error.to_string()));
            pending::<()>().await;
        }),
        Err(error) => drop(sender.send(Err(error.to_string()))),
    };
    match std::thread::Builder::new().name(name.into()).spawn(run) {
        Ok(_) => started.await.unwrap_or_else(|_| Err("the thread exited".into())),
        Err(error) => Err(error.to_string()),
    }
}
