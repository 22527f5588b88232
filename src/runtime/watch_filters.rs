//! From a watch to the objects that are looked at, past the cache that it fills.

use std::collections::HashMap;
use std::future::{Ready, ready};

use futures::{Stream, StreamExt, stream};
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};

/// What a watch brings.
pub type Seen<K> = Result<watcher::Event<K>, watcher::Error>;

/// Keeps out of the cache that follows what there is nothing to do about: ten thousand bound volumes are as good as
/// none. What is settled leaves the cache as if it were deleted, and comes back with the change that unsettles it.
pub fn pending<K>(settled: impl Fn(&K) -> bool) -> impl FnMut(Seen<K>) -> Ready<Option<Seen<K>>> {
    move |event| {
        ready(match event {
            Ok(watcher::Event::InitApply(object)) if settled(&object) => None,
            Ok(watcher::Event::Apply(object)) if settled(&object) => Some(Ok(watcher::Event::Delete(object))),
            other => Some(other),
        })
    }
}

/// The objects that are there, once the cache before this has them.
pub fn applied<K>(events: impl Stream<Item = Seen<K>>) -> impl Stream<Item = Result<K, watcher::Error>> {
    looked_at(events, |change| match change {
        Change::Listed(objects) => objects,
        Change::Applied(object) => vec![object],
        Change::Deleted(_) => Vec::new(),
    })
}

/// The same, and those that are deleted.
pub fn touched<K>(events: impl Stream<Item = Seen<K>>) -> impl Stream<Item = Result<K, watcher::Error>> {
    looked_at(events, |change| match change {
        Change::Listed(objects) => objects,
        Change::Applied(object) | Change::Deleted(object) => vec![object],
    })
}

/// The objects that are there and concern us by another number than before; without a number, always.
pub fn concerning<K: Resource>(
    events: impl Stream<Item = Seen<K>>,
    concern: impl Fn(&K) -> Option<u64>,
) -> impl Stream<Item = Result<K, watcher::Error>> {
    let mut concerns = Concerns::default();
    looked_at(events, move |change| concerns.news(change, &concern))
}

/// The numbers of what is in the cache, by uid, and of nothing else: what is deleted or settled is forgotten, and is news
/// when it comes back, also as it was. kube's own filter keeps whatever it saw for an hour.
#[derive(Default)]
struct Concerns(HashMap<String, u64>);

impl Concerns {
    fn news<K: Resource>(&mut self, change: Change<K>, concern: impl Fn(&K) -> Option<u64>) -> Vec<K> {
        match change {
            Change::Listed(objects) => {
                // What is not listed any more was deleted.
                let mut before = std::mem::take(self);
                let news = objects.into_iter().filter(|object| {
                    let number = concern(object);
                    let former = before.note(object, None);
                    self.note(object, number);
                    number.is_none() || number != former
                });
                news.collect()
            }
            Change::Applied(object) => {
                let number = concern(&object);
                let former = self.note(&object, number);
                let news = number.is_none() || number != former;
                news.then_some(object).into_iter().collect()
            }
            Change::Deleted(object) => {
                self.note(&object, None);
                Vec::new()
            }
        }
    }

    /// Notes an object's number, or forgets it; answers the former one.
    fn note<K: Resource>(&mut self, object: &K, number: Option<u64>) -> Option<u64> {
        let uid = object.uid().unwrap_or_default();
        match number {
            Some(number) => self.0.insert(uid, number),
            None => self.0.remove(&uid),
        }
    }
}

/// What a watch brings, a list at once.
enum Change<K> {
    /// Everything that there is.
    Listed(Vec<K>),
    Applied(K),
    Deleted(K),
}

/// A cache takes a list in when it is complete, and a list has many pages: who looks at an object of the first one
/// before that finds what was there before the watch broke off, or nothing, and nobody would look again.
fn looked_at<K>(
    events: impl Stream<Item = Seen<K>>,
    mut look: impl FnMut(Change<K>) -> Vec<K>,
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
        let objects = change.map(&mut look).unwrap_or_default();
        stream::iter(objects.into_iter().map(Ok).collect::<Vec<_>>())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use k8s_openapi::api::core::v1::PersistentVolume;
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

    fn is_bound(volume: &PersistentVolume) -> bool {
        phase(volume) == "Bound"
    }

    fn watch(events: Vec<watcher::Event<PersistentVolume>>) -> impl Stream<Item = Seen<PersistentVolume>> {
        stream::iter(events).map(Ok)
    }

    #[tokio::test]
    async fn what_a_broken_watch_lists_anew_is_looked_at_as_it_is_now() {
        let (cache, writer) = reflector::store();
        let events = watch(vec![
            Init,
            InitApply(volume("a", "Bound")),
            InitApply(volume("b", "Failed")),
            InitDone,
            // It broke off, and both were released meanwhile; the first try to list them breaks off too.
            Init,
            InitApply(volume("a", "Released")),
            Init,
            InitApply(volume("a", "Released")),
            InitApply(volume("b", "Released")),
            InitDone,
            Apply(volume("c", "Released")),
            Delete(volume("b", "Released")),
        ]);
        let looks = applied(events.filter_map(pending(is_bound)).reflect(writer)).map(|seen| {
            let name = seen.unwrap().name_any();
            let found = cache.get(&ObjectRef::new(&name));
            (name, found.map(|found| phase(&found)))
        });
        let looks: Vec<_> = looks.collect().await;
        let expected = [("b", "Failed"), ("a", "Released"), ("b", "Released"), ("c", "Released")];
        assert_eq!(
            looks,
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
        let looks = concerning(events.filter_map(pending(is_bound)), |_| Some(1));
        let looks: Vec<_> = looks.map(|seen| phase(&seen.unwrap())).collect().await;
        assert_eq!(looks, ["Released"; 3], "neither the settled nor the unchanged");
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
        let looks = concerning(events, failed).map(|seen| seen.unwrap().name_any());
        let looks: Vec<_> = looks.collect().await;
        assert_eq!(looks, ["a", "b", "c", "b", "c"], "c was gone meanwhile");
    }

    #[test]
    fn nothing_is_remembered_of_what_is_settled_or_gone() {
        let mut concerns = Concerns::default();
        let mut see = |change| concerns.news(change, |_: &PersistentVolume| Some(1)).len();
        assert_eq!(see(Change::Listed(vec![volume("a", ""), volume("b", "")])), 2);
        assert_eq!(see(Change::Applied(volume("c", ""))), 1);
        assert_eq!(see(Change::Listed(vec![volume("b", ""), volume("c", "")])), 0);
        assert_eq!(see(Change::Deleted(volume("c", ""))), 0);
        assert_eq!(concerns.0.into_keys().collect::<Vec<_>>(), ["b"]);
    }
}
