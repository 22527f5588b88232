//! `kubectl nfs migrate`: what it plans is what the operator does.

use rig::TestEnv;
use rig::objects::merge;
use serde_json::{Value, json as object};

use super::{OPERATOR_NAMESPACE, fine, json, nfs, refused};
use crate::cli::program::text as stream;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::legacy_provisioner::{LegacyProvisioner, assert_untouched};
use crate::support::shared::{self, Test, text};

fn volume<'a>(plan: &'a Value, object: &Value) -> &'a Value {
    let mut volumes = plan["volumes"].as_array().unwrap().iter();
    let found = volumes.find(|volume| volume["name"] == object["metadata"]["name"]);
    found.unwrap_or_else(|| panic!("{plan:#}"))
}

/// Returns a Deployment of nfs-subdir with a server, without creating it.
fn legacy_deployment(server: &str) -> Value {
    object!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "nfs-client", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "nfs-client"}},
            "template": {
                "metadata": {"labels": {"app": "nfs-client"}},
                "spec": {"containers": [{"name": "nfs-client", "image": "none", "env": [
                    {"name": "NFS_SERVER", "value": server},
                    {"name": "NFS_PATH", "value": "/projects"},
                    {"name": "PROVISIONER_NAME", "value": "example.com/nfs-projects"},
                ]}]},
            },
        },
    })
}

#[tokio::test]
async fn the_plan_names_backend_directory_and_obstacles_and_changes_nothing() -> Test {
    let env = TestEnv::new("migrate").await?;
    let legacy = LegacyProvisioner::new(&env, object!({})).await?;
    let class = legacy.class_object("class", &object!({ "archiveOnDelete": "false" }));
    let plain = legacy.volume("plain", &class, None).await?;
    let outer = legacy.volume("outer", &class, Some("team")).await?;
    let inner = legacy.volume("inner", &class, Some("team/inner")).await?;
    env.objects.create(&class).await?;
    let plan = [
        "migrate",
        "--from",
        "nfs-subdir",
        "--plan",
        "--provisioner",
        &legacy.provisioner,
    ];
    let backend = text(&legacy.backend, "/metadata/name");
    let before = env.objects.get(&plain.volume).await?;

    let (code, planned) = json(&env.rig.cluster, &plan).await;
    assert_eq!(code, Some(1), "{planned:#}");
    let found = volume(&planned, &plain.volume);
    let name = format!("{}-plain-{}", env.name, text(&plain.volume, "/metadata/name"));
    for (field, expected) in [
        ("claim", object!(format!("{}/plain", env.name))),
        ("backend", object!(backend)),
        ("directory", object!(name)),
        ("onDelete", object!("delete")),
        ("obstacle", Value::Null),
    ] {
        assert_eq!(found[field], expected, "{found:#}");
    }
    for (one, other) in [(&outer, &inner), (&inner, &outer)] {
        let obstacle = &volume(&planned, &one.volume)["obstacle"];
        assert_eq!(obstacle["reason"], "DirectoryOverlaps", "{planned:#}");
        assert!(
            text(obstacle, "/message").contains(text(&other.volume, "/metadata/name")),
            "{obstacle}"
        );
    }
    // The operator of the test serves the name, which no Deployment shows.
    let step = &planned["provisioners"][0]["steps"][0]["command"];
    assert_eq!(
        *step,
        format!("--provisioner-alias={}={backend}", legacy.provisioner),
        "{planned:#}"
    );
    assert_eq!(env.objects.get(&plain.volume).await?, before);
    assert_untouched(&env, &plain.volume).await?;

    // The operator does what was planned.
    shared::reclaim(&env, &plain.claim, &plain.volume, "VolumeDeleted").await?;
    env.objects.delete(&inner.claim).await?;
    let note = shared::wait_reclaim_refused(&env, &inner.volume).await?;
    assert!(note.starts_with("DirectoryOverlaps"), "{note}");
    let alias = format!("{}={backend}", legacy.provisioner);
    let shown = nfs(
        &env.rig.cluster,
        &[&plan[..], &["--provisioner-alias", &alias]].concat(),
    )
    .await;
    let shown = stream(&shown.stdout);
    for expected in [
        "nothing left to do",
        "DirectoryOverlaps",
        "delete, as soon as it is taken over",
    ] {
        assert!(shown.contains(expected), "{shown}");
    }
    Ok(())
}

#[tokio::test]
async fn the_steps_of_the_plan_take_the_volumes_of_a_deployment_over() -> Test {
    let env = DedicatedCluster::start(object!({})).await?;
    let none = fine(&env.cluster, &["migrate", "--from", "nfs-subdir", "--plan"]).await;
    assert!(none.starts_with("no volumes"), "{none}");
    let deployment = legacy_deployment("nfs.example.com");
    env.objects.create(&deployment).await?;
    let mut operator = deployment.clone();
    let labels = object!({"nfs-operator.io/component": "operator"});
    merge(
        &mut operator,
        &object!({"metadata": {"namespace": OPERATOR_NAMESPACE, "name": "nfs-operator", "labels": labels}}),
    );
    operator["spec"]["template"]["spec"]["containers"][0]["env"] = object!([]);
    let operator = env.objects.create(&operator).await?;
    let (code, planned) = json(&env.cluster, &["migrate", "--from", "nfs-subdir", "--plan"]).await;
    assert_eq!(code, Some(0), "{planned:#}");
    let steps = planned["provisioners"][0]["steps"].as_array().unwrap();
    let commands: Vec<&str> = steps.iter().map(|step| text(step, "/command")).collect();
    let [create, alias, stop] = commands[..] else {
        panic!("{planned:#}")
    };
    env.run_as_admin(create).await?;
    env.run_as_admin(stop).await?;
    let argument = object!({"spec": {"template": {"spec": {"containers": [
        {"name": "nfs-client", "image": "none", "args": ["run", alias]},
    ]}}}});
    env.objects.patch(&operator, argument).await?;
    let (code, planned) = json(&env.cluster, &["migrate", "--from", "nfs-subdir", "--plan"]).await;
    assert_eq!(planned["provisioners"][0]["steps"], object!([]), "{planned:#}");
    assert_eq!(planned["provisioners"][0]["backend"], "projects", "{planned:#}");
    // Nothing answers at that address.
    assert_eq!(code, Some(1), "{planned:#}");
    assert!(!text(&planned, "/provisioners/0/obstacle/message").is_empty());
    Ok(())
}

#[tokio::test]
async fn a_deployment_of_a_tenant_decides_nothing() -> Test {
    let env = DedicatedCluster::start(object!({})).await?;
    env.objects
        .create(&rig::objects::reference("v1", "Namespace", None, "a-tenant"))
        .await?;
    env.objects.create(&legacy_deployment("nfs.example.com")).await?;
    let mut tenants = legacy_deployment("attacker.example.com");
    merge(&mut tenants, &object!({"metadata": {"namespace": "a-tenant"}}));
    env.objects.create(&tenants).await?;
    // Outside the namespace of the operator, its label means nothing.
    let mut labelled = tenants.clone();
    let labels = object!({"nfs-operator.io/component": "operator"});
    merge(
        &mut labelled,
        &object!({"metadata": {"name": "labelled", "labels": labels}}),
    );
    env.objects.create(&labelled).await?;

    let plan = ["migrate", "--from", "nfs-subdir", "--plan"];
    let (code, undecided) = json(&env.cluster, &plan).await;
    assert_eq!(code, Some(1), "{undecided:#}");
    let found = &undecided["provisioners"][0];
    assert_eq!(found["steps"], object!([]), "{found:#}");
    let message = text(found, "/obstacle/message");
    for expected in [
        "a-tenant/nfs-client (attacker.example.com:/projects)",
        "default/nfs-client (nfs.example.com:/projects)",
        "--provisioner-namespace",
    ] {
        assert!(message.contains(expected), "{message}");
    }

    let selected = [&plan[..], &["--provisioner-namespace", "default"]].concat();
    let shown = fine(&env.cluster, &selected).await;
    assert!(!shown.contains("attacker"), "{shown}");
    for expected in [
        "Deployment default/nfs-client: nfs.example.com:/projects, NOT CONFIRMED",
        "with the export of Deployment default/nfs-client, NOT CONFIRMED",
        "--provisioner-alias=example.com/nfs-projects=projects",
    ] {
        assert!(shown.contains(expected), "{shown}");
    }

    // A volume of the old provisioner, which no tenant can create, confirms the address.
    let volume = object!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": "pvc-1", "annotations": {"pv.kubernetes.io/provisioned-by": "example.com/nfs-projects"},
        },
        "spec": {
            "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "nfs": {"server": "nfs.example.com", "path": "/projects/shop-data-pvc-1"},
        },
    });
    env.objects.create(&volume).await?;
    let (_, confirmed) = json(&env.cluster, &selected).await;
    let deployments = &confirmed["provisioners"][0]["deployments"];
    assert_eq!(deployments[0]["isConfirmed"], true, "{confirmed:#}");
    Ok(())
}

#[tokio::test]
async fn without_the_plan_it_says_what_migrates() -> Test {
    let env = TestEnv::new("migrate-args").await?;
    let unplanned = refused(&env.rig.cluster, 2, &["migrate", "--from", "nfs-subdir"]).await;
    assert!(
        unplanned.contains("--plan") && unplanned.contains("--provisioner-alias"),
        "{unplanned}"
    );
    let unknown = refused(&env.rig.cluster, 2, &["migrate", "--from", "other", "--plan"]).await;
    assert!(unknown.contains("nfs-subdir"), "{unknown}");
    Ok(())
}
