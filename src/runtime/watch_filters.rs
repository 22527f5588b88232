//! Filters between a watch, the cache that it fills, and the reconciler.

use std::fmt::Display;
use std::future::{Ready, ready};
use std::pin::pin;

use export_store::UidMap;
use futures::{Stream, StreamExt, stream};
use kube::runtime::watcher;
use tokio::sync::mpsc;

use crate::runtime::api_error::watch_error_text;

/// An event of a watch, or its failure.
pub type WatchEvent<K> = Result<watcher::Event<K>, watcher::Error>;

/// Maximum number of events that were read from a watch and are not processed yet.
const READ_AHEAD: usize = 64;

/// Reads a watch in a task of its own, up to [`READ_AHEAD`] events ahead. A controller polls its watch and all of its
/// reconciliations in one task. Thousands of them would delay the watch until the API server closes it because it is read
/// too slowly, and then the events of all namespaces are late.
pub fn read_ahead<K: Send + 'static>(
    events: impl Stream<Item = WatchEvent<K>> + Send + 'static,
) -> impl Stream<Item = WatchEvent<K>> + Send {
    let (tx, rx) = mpsc::channel(READ_AHEAD);
    tokio::spawn(async move {
        let read = async {
            let mut events = pin!(events);
            while let Some(event) = events.next().await {
                if tx.send(event).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = read => {}
            // The controller ended.
            () = tx.closed() => {}
        }
    });
    stream::unfold(rx, async |mut rx| Some((rx.recv().await?, rx)))
}

/// Keeps settled objects out of the cache that follows, so that ten thousand bound volumes cost as little as none. An
/// object that becomes settled leaves the cache as if it were deleted. It returns with the change that unsettles it.
pub fn drop_settled<K>(settled: impl Fn(&K) -> bool) -> impl FnMut(WatchEvent<K>) -> Ready<Option<WatchEvent<K>>> {
    move |event| {
        ready(match event {
            Ok(watcher::Event::InitApply(object)) if settled(&object) => None,
            Ok(watcher::Event::Apply(object)) if settled(&object) => Some(Ok(watcher::Event::Delete(object))),
            other => Some(other),
        })
    }
}

/// Returns the event with another representation of its object.
pub fn map_event<K, C>(event: watcher::Event<K>, map: impl FnOnce(K) -> C) -> watcher::Event<C> {
    match event {
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitApply(object) => watcher::Event::InitApply(map(object)),
        watcher::Event::InitDone => watcher::Event::InitDone,
        watcher::Event::Apply(object) => watcher::Event::Apply(map(object)),
        watcher::Event::Delete(object) => watcher::Event::Delete(map(object)),
    }
}

/// Logs errors of the watch of these objects, and passes on everything else.
///
/// A controller of kube (5.0) must not get them: it would wait after each one, although the watch has waited already, and after
/// several of them, one was seen to read no more, because the two halves of its queue do not wake each other.
pub fn log_errors<K>(
    what: impl Display,
    objects: impl Stream<Item = Result<K, watcher::Error>>,
) -> impl Stream<Item = Result<K, watcher::Error>> {
    objects.filter_map(move |object| {
        if let Err(error) = &object {
            tracing::warn!("watch of {what}: {}", watch_error_text(error));
        }
        ready(object.ok().map(Ok))
    })
}

/// Passes on objects that exist, after the cache before this filter has them.
pub fn applied<K>(events: impl Stream<Item = WatchEvent<K>>) -> impl Stream<Item = Result<K, watcher::Error>> {
    reconciled(events, |change| match change {
        Change::Listed(objects) => objects,
        Change::Applied(object) => vec![object],
        Change::Deleted(_) => Vec::new(),
    })
}

/// Passes on objects that exist, and objects that were deleted.
pub fn applied_or_deleted<K>(
    events: impl Stream<Item = WatchEvent<K>>,
) -> impl Stream<Item = Result<K, watcher::Error>> {
    reconciled(events, |change| match change {
        Change::Listed(objects) => objects,
        Change::Applied(object) | Change::Deleted(object) => vec![object],
    })
}

/// Passes on objects that exist and whose fingerprint changed, by UID. Objects without a fingerprint always pass.
pub fn applied_if_changed<K>(
    events: impl Stream<Item = WatchEvent<K>>,
    uid: impl Fn(&K) -> Option<String>,
    fingerprint: impl Fn(&K) -> Option<u64>,
) -> impl Stream<Item = Result<K, watcher::Error>> {
    let mut fingerprints = Fingerprints::default();
    reconciled(events, move |change| fingerprints.changed(change, &uid, &fingerprint))
}

/// The fingerprints of the objects in the cache, by UID. An object that was deleted or settled is forgotten, and passes
/// when it returns, even unchanged. kube's own predicate cache keeps whatever it saw for an hour.
#[derive(Default)]
struct Fingerprints(UidMap<u64>);

impl Fingerprints {
    fn changed<K>(
        &mut self,
        change: Change<K>,
        uid: impl Fn(&K) -> Option<String>,
        fingerprint: impl Fn(&K) -> Option<u64>,
    ) -> Vec<K> {
        let uid = |object: &K| uid(object).unwrap_or_default();
        match change {
            Change::Listed(objects) => {
                // An object that is no longer listed was deleted.
                let mut before = std::mem::take(self);
                let changed = objects.into_iter().filter(|object| {
                    let new = fingerprint(object);
                    let former = before.replace(&uid(object), None);
                    self.replace(&uid(object), new);
                    new.is_none() || new != former
                });
                changed.collect()
            }
            Change::Applied(object) => {
                let new = fingerprint(&object);
                let former = self.replace(&uid(&object), new);
                let changed = new.is_none() || new != former;
                changed.then_some(object).into_iter().collect()
            }
            Change::Deleted(object) => {
                self.replace(&uid(&object), None);
                Vec::new()
            }
        }
    }

    /// Stores or forgets an object's fingerprint, and returns the former one.
    fn replace(&mut self, uid: &str, fingerprint: Option<u64>) -> Option<u64> {
        match fingerprint {
            Some(fingerprint) => self.0.insert(uid, fingerprint),
            None => self.0.remove(uid),
        }
    }
}

/// A change, with a whole list as one.
enum Change<K> {
    /// All objects.
    Listed(Vec<K>),
    Applied(K),
    Deleted(K),
}

/// Passes on the objects that `select` picks from each change. A list counts when it is complete: only then does the
/// cache hold it, and a reconciler that saw an object of an early page would read the state before the watch broke, or
/// nothing, and would not be called again.
fn reconciled<K>(
    events: impl Stream<Item = WatchEvent<K>>,
    mut select: impl FnMut(Change<K>) -> Vec<K>,
) -> impl Stream<Item = Result<K, watcher::Error>> {
    let mut listed = Vec::new();
    events.flat_map(move |event| {
        let change = match event {
            Ok(watcher::Event::Init) => {
                listed.clear();
                None
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed.push(object);
                None
            }
            Ok(watcher::Event::InitDone) => Some(Change::Listed(std::mem::take(&mut listed))),
            Ok(watcher::Event::Apply(object)) => Some(Change::Applied(object)),
            Ok(watcher::Event::Delete(object)) => Some(Change::Deleted(object)),
            Err(error) => return stream::iter(vec![Err(error)]),
        };
        let objects = change.map(&mut select).unwrap_or_default();
        stream::iter(objects.into_iter().map(Ok).collect::<Vec<_>>())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use k8s_openapi::api::core::v1::PersistentVolume;
    use kube::ResourceExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::runtime::reflector::ObjectRef;
    use kube::runtime::{WatchStreamExt, reflector};
    use serde_json::json;
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    use super::*;

    fn volume(name: &str, phase: &str) -> PersistentVolume {
        let object = json!({"metadata": {"name": name, "uid": name}, "spec": {}, "status": {"phase": phase}});
        serde_json::from_value(object).unwrap()
    }

    fn phase(volume: &PersistentVolume) -> String {
        volume.status.clone().unwrap_or_default().phase.unwrap_or_default()
    }

    #[tokio::test]
    async fn errors_of_a_watch_reach_no_controller() {
        let objects = [
            Err(watcher::Error::NoResourceVersion),
            Ok("a"),
            Err(watcher::Error::NoResourceVersion),
            Ok("b"),
        ];
        let passed: Vec<_> = log_errors("volumes", stream::iter(objects)).collect().await;
        let passed: Vec<_> = passed.into_iter().map(Result::unwrap).collect();
        assert_eq!(passed, ["a", "b"]);
    }

    fn is_bound(volume: &PersistentVolume) -> bool {
        phase(volume) == "Bound"
    }

    fn watch(events: Vec<watcher::Event<PersistentVolume>>) -> impl Stream<Item = WatchEvent<PersistentVolume>> {
        stream::iter(events).map(Ok)
    }

    #[tokio::test]
    async fn a_watch_is_read_while_its_events_are_not_processed_and_ends_with_its_consumer() {
        let read = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&read);
        let endless = stream::repeat_with(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(Apply(volume("a", "Bound")))
        });
        let mut events = Box::pin(read_ahead(endless));
        let run_watch = async || {
            for _ in 0..10 * READ_AHEAD {
                tokio::task::yield_now().await;
            }
        };
        run_watch().await;
        assert_eq!(
            read.load(Ordering::Relaxed),
            READ_AHEAD + 1,
            "as many as fit, and one that waits for its place"
        );
        for _ in 0..3 {
            assert!(matches!(events.next().await, Some(Ok(Apply(_)))));
        }
        run_watch().await;
        assert_eq!(read.load(Ordering::Relaxed), READ_AHEAD + 4);
        drop(events);
        run_watch().await;
        assert_eq!(Arc::strong_count(&read), 1, "the watch is closed");
    }

    #[tokio::test]
    async fn what_a_broken_watch_lists_anew_is_looked_at_as_it_is_now() {
        let (cache, writer) = reflector::store();
        let events = watch(vec![
            Init,
            InitApply(volume("a", "Bound")),
            InitApply(volume("b", "Failed")),
            InitDone,
            // The watch broke, and both volumes were released meanwhile. The first attempt to list them breaks too.
            Init,
            InitApply(volume("a", "Released")),
            Init,
            InitApply(volume("a", "Released")),
            InitApply(volume("b", "Released")),
            InitDone,
            Apply(volume("c", "Released")),
            Delete(volume("b", "Released")),
        ]);
        let reconciled = applied(events.filter_map(drop_settled(is_bound)).reflect(writer)).map(|seen| {
            let name = seen.unwrap().name_any();
            let found = cache.get(&ObjectRef::new(&name));
            (name, found.map(|found| phase(&found)))
        });
        let reconciled: Vec<_> = reconciled.collect().await;
        let expected = [("b", "Failed"), ("a", "Released"), ("b", "Released"), ("c", "Released")];
        assert_eq!(
            reconciled,
            expected.map(|(name, phase)| (name.to_owned(), Some(phase.to_owned())))
        );
    }

    #[tokio::test]
    async fn what_was_settled_or_deleted_and_comes_back_as_it_was_is_looked_at_again() {
        let events = watch(vec![
            Init,
            InitDone,
            Apply(volume("a", "Released")),
            Apply(volume("a", "Released")),
            Apply(volume("a", "Bound")),
            Apply(volume("a", "Released")),
            Delete(volume("a", "Released")),
            Apply(volume("a", "Released")),
        ]);
        let reconciled = applied_if_changed(events.filter_map(drop_settled(is_bound)), PersistentVolume::uid, |_| {
            Some(1)
        });
        let reconciled: Vec<_> = reconciled.map(|seen| phase(&seen.unwrap())).collect().await;
        assert_eq!(reconciled, ["Released"; 3], "neither the settled nor the unchanged");
    }

    #[tokio::test]
    async fn of_what_is_listed_anew_the_changed_is_looked_at() {
        let events = watch(vec![
            Init,
            InitApply(volume("a", "Released")),
            InitApply(volume("b", "Released")),
            InitApply(volume("c", "Released")),
            InitDone,
            Init,
            InitApply(volume("a", "Released")),
            InitApply(volume("b", "Failed")),
            InitDone,
            Apply(volume("c", "Released")),
        ]);
        let failed = |volume: &PersistentVolume| Some(u64::from(phase(volume) == "Failed"));
        let reconciled = applied_if_changed(events, PersistentVolume::uid, failed).map(|seen| seen.unwrap().name_any());
        let reconciled: Vec<_> = reconciled.collect().await;
        assert_eq!(reconciled, ["a", "b", "c", "b", "c"], "c was gone meanwhile");
    }

    #[test]
    fn nothing_is_remembered_of_what_is_settled_or_gone() {
        let mut fingerprints = Fingerprints::default();
        let mut see = |change| fingerprints.changed(change, PersistentVolume::uid, |_| Some(1)).len();
        assert_eq!(see(Change::Listed(vec![volume("a", ""), volume("b", "")])), 2);
        assert_eq!(see(Change::Applied(volume("c", ""))), 1);
        assert_eq!(see(Change::Listed(vec![volume("b", ""), volume("c", "")])), 0);
        assert_eq!(see(Change::Deleted(volume("c", ""))), 0);
        assert_eq!(fingerprints.0.keys_where(|_| true), ["b"]);
    }
}
