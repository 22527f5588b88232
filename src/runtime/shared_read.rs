//! Reads that those who need the same thing at the same time share.

use tokio::sync::Mutex;
use tokio::time::Instant;

/// The last read: when it began, and its result.
pub struct SharedRead<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> SharedRead<T> {
    /// Returns what `fetch` finds at a time after the call. Callers that wait for a read in progress share the next one.
    ///
    /// # Errors
    /// Those of `fetch`. The next caller reads again.
    pub async fn read<E>(&self, fetch: impl AsyncFnOnce() -> Result<T, E>) -> Result<T, E> {
        let called = Instant::now();
        let mut last = self.0.lock().await;
        if let Some((began, found)) = &*last
            && *began >= called
        {
            return Ok(found.clone());
        }
        let began = Instant::now();
        let found = fetch().await?;
        *last = Some((began, found.clone()));
        Ok(found)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_read_begins_after_the_call_and_is_shared_by_those_who_wait() {
        let (shared, reads) = (SharedRead::default(), AtomicUsize::new(0));
        let read = async || {
            let fetch = async || {
                let read = reads.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
                Ok::<_, Infallible>(read)
            };
            shared.read(fetch).await.unwrap()
        };
        // The first read begins before the others are called, so they need another one, which they share.
        let all = tokio::join!(read(), read(), read(), read());
        assert_eq!(all, (1, 2, 2, 2));
        assert_eq!(read().await, 3, "an earlier read does not count");
        assert_eq!(reads.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn a_failed_read_is_not_kept() {
        let shared = SharedRead::default();
        assert_eq!(shared.read(async || Err::<u8, _>("refused")).await, Err("refused"));
        assert_eq!(shared.read(async || Ok::<_, &str>(1)).await, Ok(1));
    }
}
