//! Whether a process runs, is paused, or was killed: shared by the process and by everything that it exchanges.

use std::sync::Arc;

use tokio::sync::watch;

/// State of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Killed,
}

/// The state of a process. Clones share it.
#[derive(Debug, Clone)]
pub struct Life(Arc<watch::Sender<State>>);

impl Default for Life {
    /// Returns a process that runs.
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State::Running)))
    }
}

impl Life {
    /// Kills the process. It never runs again.
    pub fn kill(&self) {
        self.0.send_replace(State::Killed);
    }

    /// Returns true if the process was killed.
    pub fn is_killed(&self) -> bool {
        *self.0.borrow() == State::Killed
    }

    /// Pauses the process, if it runs.
    pub fn pause(&self) {
        self.change(State::Running, State::Paused);
    }

    /// Lets the process continue, if it is paused.
    pub fn resume(&self) {
        self.change(State::Paused, State::Running);
    }

    /// Returns true if the process is paused.
    pub fn is_paused(&self) -> bool {
        *self.0.borrow() == State::Paused
    }

    fn change(&self, from: State, to: State) {
        self.0.send_if_modified(|state| {
            let changes = *state == from;
            if changes {
                *state = to;
            }
            changes
        });
    }

    /// Waits while the process is paused, and forever once it was killed.
    pub async fn wait_until_running(&self) {
        if *self.0.borrow() == State::Running {
            return;
        }
        let mut state = self.0.subscribe();
        // The sender lives as long as `self`.
        let _running = state.wait_for(|state| *state == State::Running).await;
    }
}
