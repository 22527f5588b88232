//! Claims whose volume is filled by a volume populator, which binds it to them afterwards.

use std::fs;

use rig::objects::{condition, merge, reference};
use rig::{Objects, TestEnv};
use serde_json::{Value, json};

use crate::archives::objects::archive_of;
use crate::archives::on_demand::backup;
use crate::archives::restore::asking;
use crate::claims::late_binding::{Nodes, late_class};
use crate::recovery::cluster_loss::{available, frequent_probes};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::populator::{Populator, Progress, Style, populated};
use crate::support::shared::{self, Failure, TIMEOUT, Test, text};

const CLAIM_UID: &str = "nfs-operator.io/claim-uid";

/// Checks that the operator reported nothing about a claim, and requested nothing for it.
async fn assert_left_alone(objects: &Objects, claim: &Value) -> Test {
    let found = objects.get(claim).await?.ok_or("no claim")?;
    assert_eq!(condition(&found, "nfs-operator.io/Provisioned"), None, "{found}");
    assert_not_placed(objects, claim).await
}

/// Waits until the operator reports the volume to which its populator bound a claim, and nothing else.
async fn wait_reported(objects: &Objects, claim: &Value) -> Test {
    let kind = "nfs-operator.io/Provisioned";
    let reason = Some("Provisioned");
    objects.wait_condition(claim, kind, "True", reason, TIMEOUT).await?;
    assert_not_placed(objects, claim).await
}

async fn assert_not_placed(objects: &Objects, claim: &Value) -> Test {
    let found = objects.get(claim).await?.ok_or("no claim")?;
    assert_eq!(
        found["metadata"]["annotations"]["nfs-operator.io/placed-on"],
        Value::Null
    );
    let events = objects.events(claim).await?;
    let warnings: Vec<&Value> = events.iter().filter(|event| event["type"] == "Warning").collect();
    assert!(warnings.is_empty(), "{warnings:?}");
    Ok(())
}

/// Checks that the operator did not report that the volume of a claim was deleted.
async fn assert_not_lost(objects: &Objects, claim: &Value) -> Test {
    let found = objects.get(claim).await?.ok_or("no claim")?;
    assert_eq!(found["status"]["phase"], "Lost");
    let reported = condition(&found, "nfs-operator.io/Provisioned")
        .cloned()
        .unwrap_or_default();
    assert_eq!(reported["status"], "True", "{reported}");
    Ok(())
}

/// Waits until the record of a volume is that of its claim.
async fn wait_transferred(objects: &Objects, volume: &Value, claim: &Value) -> Test {
    let uid = text(claim, "/metadata/uid");
    let is = |volume: &Value| match volume["metadata"]["annotations"][CLAIM_UID].as_str() {
        Some(recorded) if recorded == uid => Ok(()),
        other => Err(format!("{other:?}")),
    };
    Ok(objects.wait(volume, "to be its claim's", TIMEOUT, is).await?)
}

/// The operator is down while the volume is bound to the target claim and the prime claim is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_a_populator_filled_is_cloned_backed_up_and_reclaimed_for_the_claim_that_it_is_bound_to() -> Test
{
    let mut env = DedicatedCluster::start(frequent_probes()).await?;
    let namespace = "populators".to_owned();
    env.objects
        .create(&reference("v1", "Namespace", None, &namespace))
        .await?;
    let style = Style::LibVolumePopulator;
    let target = env.objects.create(&populated(env.claim("data"), style)).await?;
    let populator = Populator {
        objects: &env.objects.clone(),
        namespace,
        style,
    };
    populator.sync_until(&target, Progress::Pod).await?;
    let volume = populator
        .run_pod(&target, "filled", |volume| env.directory(volume))
        .await?;
    assert_left_alone(&env.objects, &target).await?;
    env.operator.kill9().await?;
    populator.sync_until(&target, Progress::Done).await?;
    env.objects.wait_gone(&populator.prime(&target), TIMEOUT).await?;
    env.operator.restart().await?;

    wait_transferred(&env.objects, &volume, &target).await?;
    let bound = env.bound(&target).await?;
    assert_eq!(bound["metadata"]["uid"], volume["metadata"]["uid"]);
    wait_reported(&env.objects, &target).await?;
    let mut clone = env.claim("clone");
    let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    merge(&mut clone, &json!({"spec": {"dataSource": source}}));
    let clone = env.objects.create(&clone).await?;
    let copied = env.bound(&clone).await?;
    assert_eq!(fs::read_to_string(env.directory(&copied)?.join("data"))?, "filled");
    let request = env.objects.create(&backup("nightly", "default", "data")).await?;
    available(&env, &request).await?;

    let archives = env.archives().await?;
    env.objects.delete(&target).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    let archive = available(&env, &archive_of(&volume)).await?;
    assert_eq!(env.archives().await?.len(), archives.len() + 1, "one more archive");
    let name = text(&archive, "/metadata/name");
    // The populator's namespace, which the volume came from, cannot have it.
    let mut stranger = asking(env.claim("stranger"), name);
    merge(&mut stranger, &json!({"metadata": {"namespace": "populators"}}));
    let stranger = env.objects.create(&stranger).await?;
    shared_refused(&env, &stranger, "ArchiveNotFound").await?;
    let again = env.objects.create(&asking(env.claim("again"), name)).await?;
    let restored = env.bound(&again).await?;
    assert_eq!(fs::read_to_string(env.directory(&restored)?.join("data"))?, "filled");
    Ok(())
}

async fn shared_refused(env: &DedicatedCluster, claim: &Value, reason: &str) -> Test {
    let kind = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(claim, kind, "False", Some(reason), TIMEOUT)
        .await?;
    Ok(())
}

/// Creates the namespace of a populator.
async fn populator(env: &TestEnv, style: Style) -> rig::Result<Populator<'_>> {
    let namespace = env.unique_name("populator");
    env.objects
        .create(&reference("v1", "Namespace", None, &namespace))
        .await?;
    Ok(Populator {
        objects: &env.objects,
        namespace,
        style,
    })
}

fn directory(env: &TestEnv) -> impl Fn(&Value) -> Result<std::path::PathBuf, Failure> {
    |volume| Ok(env.directory(volume)?)
}

#[tokio::test]
async fn a_populated_claim_with_late_binding_gets_the_volume_on_the_node_of_its_pod() -> Test {
    for (word, style) in [("pop-late", Style::LibVolumePopulator), ("cdi-late", Style::Cdi)] {
        let env = TestEnv::new(word).await?;
        let nodes = Nodes(&env);
        nodes.add("n1", "any").await?;
        shared::backend(&env, "backend", json!({})).await?;
        let class = late_class(&env, &[env.unique_name("backend")], None).await?;
        let populator = populator(&env, style).await?;
        let target = env.objects.create(&populated(env.claim("data", &class), style)).await?;
        assert_eq!(populator.sync(&target).await?, Progress::NodeSelection);
        nodes.pod(&target).await?;
        populator.sync_until(&target, Progress::Pod).await?;
        let filled = populator.run_pod(&target, "filled", directory(&env)).await?;
        assert_left_alone(&env.objects, &target).await?;
        populator.sync_until(&target, Progress::Done).await?;
        env.objects.wait_gone(&populator.prime(&target), TIMEOUT).await?;
        let volume = env.wait_bound(&target).await?;
        assert_eq!(volume["metadata"]["uid"], filled["metadata"]["uid"]);
        wait_transferred(&env.objects, &volume, &target).await?;
        wait_reported(&env.objects, &target).await?;
        assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "filled");
        assert_eq!(shared::names(env.data())?.len(), 1, "one directory, and no archive");
    }
    Ok(())
}

#[tokio::test]
async fn the_prime_claim_of_a_populator_is_not_reported_as_lost_once_its_volume_is_bound_to_the_target() -> Test {
    let env = TestEnv::new("prime-lost").await?;
    let class = env.create_ready_class().await?;
    let populator = populator(&env, Style::LibVolumePopulator).await?;
    let target = populated(env.claim("data", &class), populator.style);
    let target = env.objects.create(&target).await?;
    populator.sync_until(&target, Progress::Pod).await?;
    populator.run_pod(&target, "filled", directory(&env)).await?;
    populator.sync_until(&target, Progress::Binding).await?;
    let volume = env.wait_bound(&target).await?;
    let lost = |prime: &Value| match text(prime, "/status/phase") {
        "Lost" => Ok(()),
        phase => Err(phase.to_owned()),
    };
    let prime = populator.prime(&target);
    env.objects.wait(&prime, "to be Lost", TIMEOUT, lost).await?;
    // A later claim that has its volume shows that this one was checked.
    shared::bound(&env, "later", &class).await?;
    assert_not_lost(&env.objects, &prime).await?;
    populator.sync_until(&target, Progress::Done).await?;
    env.objects.wait_gone(&prime, TIMEOUT).await?;
    shared::bound(&env, "last", &class).await?;
    assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "filled");
    assert_eq!(shared::archives(env.data())?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_prime_claim_that_is_deleted_before_its_volume_is_bound_to_the_target_is_reclaimed_as_its_own() -> Test {
    let env = TestEnv::new("prime-gone").await?;
    let class = env.create_ready_class().await?;
    let populator = populator(&env, Style::LibVolumePopulator).await?;
    let target = populated(env.claim("data", &class), populator.style);
    let target = env.objects.create(&target).await?;
    populator.sync_until(&target, Progress::Pod).await?;
    let first = populator.run_pod(&target, "first", directory(&env)).await?;
    // A claim is not deleted as long as a pod uses it.
    env.objects.delete(&populator.pod(&target)).await?;
    shared::reclaim(&env, &populator.prime(&target), &first, "VolumeArchived").await?;
    let archives = shared::archives(env.data())?;
    let [archive] = archives.as_slice() else {
        return Err(format!("{archives:?}").into());
    };
    assert_eq!(fs::read_to_string(env.data().join(archive).join("data"))?, "first");
    // The target's namespace has no claim to the archive: nothing shows that the volume was filled for it.
    let asked = asking(env.claim("mine", &class), text(&first, "/metadata/name"));
    let asked = env.objects.create(&asked).await?;
    shared::wait_refused(&env, &asked, "ArchiveNotFound").await?;

    // The populator starts over with a new prime claim.
    populator.sync_until(&target, Progress::Pod).await?;
    let second = populator.run_pod(&target, "second", directory(&env)).await?;
    populator.sync_until(&target, Progress::Done).await?;
    let volume = env.wait_bound(&target).await?;
    assert_eq!(volume["metadata"]["uid"], second["metadata"]["uid"]);
    assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "second");
    Ok(())
}
