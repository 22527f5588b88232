//! The word that the operator is to stop.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Told once that the operator is to stop.
#[derive(Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Ends when the operator is to stop.
    pub async fn wait(mut self) {
        // A sender that is gone means the process ends as well.
        let _ = self.0.wait_for(|asked| *asked).await;
    }

    /// Whether the operator is to stop.
    pub fn asked(&self) -> bool {
        *self.0.borrow()
    }

    /// What `work` answers, or nothing when the operator is to stop before that.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.clone().wait() => None,
        }
    }
}

/// Catches SIGTERM and SIGINT.
pub fn stop_signal() -> std::io::Result<Stop> {
    let (sender, receiver) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        // Nobody listens any more only when the process ends as well.
        let _ = sender.send(true);
    });
    Ok(Stop(receiver))
}
