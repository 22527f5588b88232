//! From a watch to the objects that are looked at, past the cache that it fills.

use std::future::{Ready, ready};

use futures::{Stream, StreamExt, stream};
use kube::Resource;
use kube::runtime::{Predicate, PredicateConfig, WatchStreamExt, watcher};

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
    cached(events, false)
}

/// The same, and those that are deleted.
pub fn touched<K>(events: impl Stream<Item = Seen<K>>) -> impl Stream<Item = Result<K, watcher::Error>> {
    cached(events, true)
}

/// The objects that concern us by another number than before, and are not settled.
///
/// What settles an object changes its number too, or it would be taken for unchanged when it comes back as it was.
pub fn concerning<K: Resource + 'static>(
    events: impl Stream<Item = Seen<K>>,
    concern: impl Predicate<K> + 'static,
    settled: impl Fn(&K) -> bool,
) -> impl Stream<Item = Result<K, watcher::Error>> {
    touched(events)
        .predicate_filter(concern, PredicateConfig::default())
        .filter(move |seen| ready(!seen.as_ref().is_ok_and(&settled)))
}

/// A cache takes a list in when it is complete, and a list has many pages: who looks at an object of the first one
/// before that finds what was there before the watch broke off, or nothing, and nobody would look again.
fn cached<K>(events: impl Stream<Item = Seen<K>>, deleted_too: bool) -> impl Stream<Item = Result<K, watcher::Error>> {
    let mut listed = Vec::new();
    events.flat_map(move |event| {
        stream::iter(match event {
            Ok(watcher::Event::Init) => {
                listed.clear();
                Vec::new()
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed.push(Ok(object));
                Vec::new()
            }
            Ok(watcher::Event::InitDone) => std::mem::take(&mut listed),
            Ok(watcher::Event::Delete(_)) if !deleted_too => Vec::new(),
            Ok(watcher::Event::Apply(object) | watcher::Event::Delete(object)) => vec![Ok(object)],
            Err(error) => vec![Err(error)],
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use k8s_openapi::api::core::v1::PersistentVolume;
    use kube::ResourceExt;
    use kube::runtime::reflector;
    use kube::runtime::reflector::ObjectRef;
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
    async fn what_was_settled_and_comes_back_as_it_was_is_looked_at_again() {
        let events = watch(vec![
            Init,
            InitDone,
            Apply(volume("a", "Released")),
            Apply(volume("a", "Released")),
            Apply(volume("a", "Bound")),
            Apply(volume("a", "Released")),
        ]);
        let concern = |volume: &PersistentVolume| Some(u64::from(is_bound(volume)));
        let looks = concerning(events.filter_map(pending(is_bound)), concern, is_bound);
        let looks: Vec<_> = looks.map(|seen| phase(&seen.unwrap())).collect().await;
        assert_eq!(looks, ["Released", "Released"], "neither the settled nor the unchanged");
    }
}
