#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
use serde_json::json;

use super::*;
use crate::compat::nfs_subdir::environment::Environment;

const OLD: &str = "old/name";

/// A volume of nfs-subdir, with a name that agrees with its claim.
fn volume(uid: &str, server: &str, path: &str) -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": {"name": format!("pvc-{uid}"), "annotations": {PROVISIONED_BY: OLD}},
        "spec": {
            "nfs": {"server": server, "path": path},
            "claimRef": {"namespace": "shop", "name": uid, "uid": uid},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "nfs-client",
        },
        "status": {"phase": "Bound"},
    }))
    .unwrap()
}

fn backend(name: &str, server: &str, path: &str) -> NfsBackend {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"server": server, "path": path},
        "status": {"conditions": [{
            "type": "Ready", "status": "True", "reason": "AllChecksPassed", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    }))
    .unwrap()
}

fn class(parameters: Value) -> StorageClass {
    serde_json::from_value(json!({"metadata": {"name": "nfs-client"}, "provisioner": OLD, "parameters": parameters}))
        .unwrap()
}

fn deployment(server: &str, path: &str) -> LegacyDeployment {
    deployment_in("storage", OLD, server, path)
}

fn deployment_in(namespace: &str, provisioner: &str, server: &str, path: &str) -> LegacyDeployment {
    let variables = [
        ("NFS_SERVER", server),
        ("NFS_PATH", path),
        ("PROVISIONER_NAME", provisioner),
    ];
    let value = |name: &str| {
        variables
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| (*value).to_owned())
    };
    LegacyDeployment {
        namespace: namespace.to_owned(),
        name: "nfs-client".to_owned(),
        environment: Environment::read(value).unwrap().unwrap(),
        is_running: true,
    }
}

fn observed(volumes: Vec<PersistentVolume>, backends: Vec<NfsBackend>) -> Observed {
    Observed {
        volumes,
        backends,
        served: Provisioners {
            names: vec!["nfs-operator.io/nfs".to_owned()],
            aliases: BTreeMap::new(),
        },
        ..Observed::default()
    }
}

/// Returns the first words of each step.
fn steps(plan: &MigrationPlan) -> Vec<&str> {
    let steps = &plan.provisioners[0].steps;
    let commands = steps.iter().map(|step| step.command.as_deref().unwrap());
    commands
        .map(|command| command.split_whitespace().next().unwrap())
        .collect()
}

#[test]
fn volumes_go_to_the_backend_on_which_they_are_and_the_operator_needs_the_alias_only() {
    let backends = vec![backend("other", "nfs", "/other"), backend("fast", "nfs", "/export")];
    let mut observed = observed(
        vec![volume("a", "nfs", "/export/a"), volume("b", "NFS", "/export/n/b")],
        backends,
    );
    let plan = observed.plan(&[]);
    assert!(plan.is_possible(), "{plan:#?}");
    let found: Vec<_> = plan
        .volumes
        .iter()
        .map(|volume| (&*volume.backend, volume.directory.as_deref()))
        .collect();
    assert_eq!(found, [("fast", Some("a")), ("fast", Some("n/b"))]);
    assert_eq!(plan.volumes[0].on_delete, "archive");
    assert_eq!(plan.provisioners[0].volumes, 2);
    assert_eq!(steps(&plan), ["--provisioner-alias=old/name=fast"]);
    // Nothing is left once the operator serves the name.
    observed.served.aliases.insert(OLD.to_owned(), "fast".to_owned());
    assert!(observed.plan(&[]).provisioners[0].steps.is_empty());
}

#[test]
fn a_missing_backend_has_the_export_of_the_deployment_or_the_directory_above_all_volumes() {
    let volumes = vec![
        volume("a", "nfs", "/srv/Data_1/x/a"),
        volume("b", "nfs", "/srv/Data_1/x/b"),
    ];
    let mut observed = observed(volumes, vec![backend("data-1", "another", "/")]);
    let plan = observed.plan(&[]);
    assert!(plan.is_possible(), "{plan:#?}");
    let creation = plan.provisioners[0].steps[0].command.as_deref().unwrap();
    assert!(creation.contains(r#""path":"/srv/Data_1/x""#), "{creation}");
    assert!(plan.provisioners[0].steps[0].description.contains("NFS_PATH"));
    assert_eq!(plan.provisioners[0].backend, "x");

    observed.deployments.push(deployment("nfs", "/srv/Data_1/"));
    let plan = observed.plan(&[]);
    assert_eq!(plan.provisioners[0].backend, "data-1-2", "another backend has the name");
    assert_eq!(plan.volumes[0].directory.as_deref(), Some("x/a"));
    assert_eq!(
        steps(&plan),
        ["printf", "--provisioner-alias=old/name=data-1-2", "kubectl"]
    );
    let creation = plan.provisioners[0].steps[0].command.as_deref().unwrap();
    assert!(
        creation.contains(r#""path":"/srv/Data_1""#) && creation.contains("Adopt"),
        "{creation}"
    );

    observed.backends.push(backend("there", "nfs", "/srv/Data_1"));
    observed.volumes.clear();
    assert_eq!(observed.plan(&[]).provisioners[0].backend, "there");
}

#[test]
fn an_export_of_a_deployment_that_the_volumes_do_not_confirm_is_to_be_checked() {
    let below = |path: &str| volume("a", "nfs", path);
    for (volumes, path, is_confirmed) in [
        (vec![below("/srv/data/a")], "/srv/data/", true),
        (
            vec![below("/srv/data/n/a"), volume("b", "NFS", "/srv/data/m/b")],
            "/srv/data",
            true,
        ),
        (vec![], "/srv/data", false),
        // A tenant's own directory, a directory around the export, another server.
        (
            vec![below("/srv/data/a"), volume("b", "nfs", "/srv/data/b")],
            "/srv/data/a",
            false,
        ),
        (vec![below("/srv/data/a")], "/srv", false),
        (vec![below("/srv/data/a")], "/", false),
        (vec![volume("a", "other", "/srv/data/a")], "/srv/data", false),
        (
            vec![below("/srv/data/a"), volume("b", "other", "/srv/data/b")],
            "/srv/data",
            false,
        ),
    ] {
        let mut observed = observed(volumes, Vec::new());
        observed.deployments.push(deployment("nfs", path));
        let plan = observed.plan(&[]).provisioners.remove(0);
        assert_eq!(plan.deployments[0].is_confirmed, is_confirmed, "{path}: {plan:#?}");
        let creation = &plan.steps[0].description;
        assert!(creation.contains("Deployment storage/nfs-client"), "{creation}");
        assert_eq!(creation.contains(UNCONFIRMED), !is_confirmed, "{path}: {creation}");
        let stop = &plan.steps[2].description;
        assert_eq!(
            stop.contains("if it is the old provisioner"),
            !is_confirmed,
            "{path}: {stop}"
        );
    }
    // A backend that exists is chosen for no other reason, either.
    let mut observed = observed(Vec::new(), vec![backend("tenants", "nfs", "/tenant")]);
    observed.deployments.push(deployment("nfs", "/tenant"));
    let plan = observed.plan(&[]).provisioners.remove(0);
    assert_eq!(plan.backend, "tenants");
    assert!(plan.steps[0].description.contains(UNCONFIRMED), "{plan:#?}");
}

#[test]
fn of_several_deployments_with_different_exports_none_is_chosen() {
    let mut observed = observed(vec![volume("a", "nfs", "/srv/data/a")], Vec::new());
    observed
        .deployments
        .push(deployment_in("a-tenant", OLD, "attacker", "/"));
    observed.deployments.push(deployment("nfs", "/srv/data"));
    let plan = observed.plan(&[]);
    assert!(!plan.is_possible());
    let undecided = &plan.provisioners[0];
    assert!(undecided.is_undecided() && undecided.steps.is_empty(), "{undecided:#?}");
    let message = &undecided.obstacle.as_ref().unwrap().message;
    for expected in [
        "a-tenant/nfs-client (attacker:/)",
        "storage/nfs-client (nfs:/srv/data)",
        "--provisioner-namespace",
    ] {
        assert!(message.contains(expected), "{message}");
    }
    let confirmed: Vec<_> = undecided.deployments.iter().map(|found| found.is_confirmed).collect();
    assert_eq!(confirmed, [false, true]);

    observed.restrict_to(&["storage".to_owned()]);
    let plan = observed.plan(&[]);
    assert!(plan.is_possible(), "{plan:#?}");
    let creation = plan.provisioners[0].steps[0].command.as_deref().unwrap();
    assert!(creation.contains(r#""server":"nfs""#), "{creation}");

    // Deployments decide nothing where the volumes or an alias do, and need not differ.
    observed
        .deployments
        .push(deployment_in("a-tenant", OLD, "attacker", "/"));
    observed.backends.push(backend("data", "nfs", "/srv/data"));
    let plan = observed.plan(&[]);
    assert!(plan.is_possible(), "{plan:#?}");
    assert_eq!(plan.provisioners[0].backend, "data");
    assert_eq!(plan.provisioners[0].deployments.len(), 2);
    observed.volumes.clear();
    observed.deployments.pop();
    observed
        .deployments
        .push(deployment_in("again", OLD, "NFS", "/srv/data/"));
    assert_eq!(observed.plan(&[]).provisioners[0].backend, "data");
}

#[test]
fn volumes_do_not_go_to_a_backend_that_only_a_deployment_of_another_name_has() {
    let mut observed = observed(vec![volume("a", "nfs", "/srv/data/a")], Vec::new());
    observed
        .deployments
        .push(deployment_in("a-tenant", "a/first", "nfs", "/srv/data/a"));
    observed
        .deployments
        .push(deployment_in("a-tenant", "b/second", "nfs", "/"));
    let plan = observed.plan(&[]);
    let found = plan.provisioners.iter().find(|planned| planned.name == OLD).unwrap();
    assert_eq!(found.backend, "data", "{plan:#?}");
    assert!(plan.volumes[0].obstacle.is_none(), "{plan:#?}");
    let creation = found.steps[0].command.as_deref().unwrap();
    assert!(creation.contains(r#""path":"/srv/data""#), "{creation}");
}

#[test]
fn text_of_objects_is_one_word_of_the_commands() {
    let path = "/it's \"$(id)\" `id` \\n\\\",\u{7}!/a";
    let mut created = observed(vec![volume("a", "nfs", path)], Vec::new());
    created.deployments.push(deployment("nfs", path.trim_end_matches("/a")));
    let mut aliased = observed(vec![volume("a", "nfs", "/export/a")], Vec::new());
    aliased
        .served
        .aliases
        .insert("other/name".to_owned(), "fast".to_owned());
    for observed in [&created, &aliased] {
        let plan = observed.plan(&[]).provisioners.remove(0);
        let words = shlex::split(plan.steps[0].command.as_deref().unwrap()).unwrap();
        assert_eq!(words[..2], ["printf", "%s\\n"]);
        assert_eq!(words[3..], ["|", "kubectl", "apply", "-f", "-"]);
        let manifest: Value = serde_json::from_str(&words[2]).unwrap();
        assert_eq!(manifest["spec"]["server"], "nfs");
        let alias = shlex::split(plan.steps[1].command.as_deref().unwrap()).unwrap();
        assert_eq!(alias, [format!("--provisioner-alias={OLD}={}", plan.backend)]);
    }
    // The list of aliases of the operator has a syntax of its own.
    for name in ["old/name=other,x", "a b", "$(id)", "x/y/z"] {
        assert!(!is_provisioner_name(name), "{name}");
        let mut observed = observed(Vec::new(), Vec::new());
        observed.deployments.push(deployment_in("a-tenant", name, "nfs", "/"));
        assert!(observed.plan(&[]).provisioners.is_empty(), "{name}");
    }
    assert!(is_provisioner_name("K8s-sigs.io/nfs_subdir.external-provisioner"));
}

#[test]
fn each_obstacle_is_named_with_its_remedy() {
    let mut renamed = volume("renamed", "nfs", "/export/renamed");
    renamed.metadata.name = Some("by-hand".to_owned());
    let mut recycled = volume("recycled", "nfs", "/export/recycled");
    recycled.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some("Recycle".to_owned());
    let volumes = vec![
        renamed,
        recycled,
        volume("fine", "nfs", "/export/fine"),
        volume("elsewhere", "10.0.0.1", "/export/elsewhere"),
        volume("outer", "nfs", "/export/team"),
        volume("inner", "nfs", "/export/team/inner"),
        volume("twin1", "nfs", "/export/twin"),
        volume("twin2", "nfs", "/export/twin/"),
        volume("twin-of-none", "nfs", "/export/twin-"),
    ];
    let mut observed = observed(volumes, vec![backend("fast", "nfs", "/export")]);
    let plan = observed.plan(&[]);
    assert!(!plan.is_possible());
    let found = |plan: &MigrationPlan, claim: &str| {
        let mut volumes = plan.volumes.iter();
        let volume = volumes.find(|volume| volume.claim == format!("shop/{claim}")).unwrap();
        volume.obstacle.clone()
    };
    for (claim, reason, remedy) in [
        ("renamed", "ReclaimUnsafe", "reclaim its data manually"),
        ("recycled", "RecycleUnsupported", "set it to Delete"),
        ("elsewhere", "ReclaimUnsafe", "formerAddresses"),
        ("outer", "DirectoryOverlaps", "pvc-inner"),
        ("inner", "DirectoryOverlaps", "pvc-outer"),
        ("twin1", "DirectoryOverlaps", "pvc-twin2"),
        ("twin2", "ReclaimUnsafe", "not a valid directory"),
    ] {
        let obstacle = found(&plan, claim).unwrap();
        assert_eq!(obstacle.reason, reason, "{claim}: {}", obstacle.message);
        assert!(obstacle.message.contains(remedy), "{claim}: {}", obstacle.message);
    }
    for claim in ["fine", "twin-of-none"] {
        assert!(found(&plan, claim).is_none(), "{claim}");
    }
    // A class with an invalid parameter concerns all its volumes, and new claims.
    observed.classes.push(class(json!({"archiveOnDelete": "perhaps"})));
    let plan = observed.plan(&[]);
    assert_eq!(found(&plan, "fine").unwrap().reason, "InvalidParameter");
    assert_eq!(plan.classes[0].name, "nfs-client");
}

#[test]
fn a_backend_that_is_not_ready_prevents_it() {
    let mut not_ready = backend("fast", "nfs", "/export");
    let status = not_ready.status.as_mut().unwrap();
    status.conditions[0].status = "False".to_owned();
    status.conditions[0].reason = "AccessDenied".to_owned();
    let plan = observed(vec![volume("a", "nfs", "/export/a")], vec![not_ready]).plan(&[]);
    assert_eq!(plan.provisioners[0].obstacle.as_ref().unwrap().reason, "AccessDenied");
    assert!(!plan.is_possible());
}

#[test]
fn the_class_and_the_reclaim_policy_decide_what_happens_to_the_data() {
    let mut retained = volume("retained", "nfs", "/export/retained");
    retained.spec.as_mut().unwrap().persistent_volume_reclaim_policy = None;
    let mut released = volume("released", "nfs", "/export/released");
    released.status.as_mut().unwrap().phase = Some("Released".to_owned());
    let volumes = vec![volume("bound", "nfs", "/export/bound"), released, retained];
    let mut observed = observed(volumes, vec![backend("fast", "nfs", "/export")]);
    observed.classes.push(class(json!({"archiveOnDelete": "false"})));
    let plan = observed.plan(&[]);
    let actions: Vec<_> = plan.volumes.iter().map(|volume| &*volume.on_delete).collect();
    assert_eq!(actions[0], "delete");
    assert!(actions[1].starts_with("delete, as soon as"), "{actions:?}");
    assert_eq!(actions[2], "retain (reclaim policy)");
}

#[test]
fn other_volumes_are_not_listed() {
    let mut ours = volume("ours", "nfs", "/export/ours");
    let annotations = ours.metadata.annotations.as_mut().unwrap();
    annotations.insert(PROVISIONED_BY.to_owned(), "nfs-operator.io/nfs".to_owned());
    let mut created_under_alias = volume("alias", "nfs", "/export/alias");
    let annotations = created_under_alias.metadata.annotations.as_mut().unwrap();
    annotations.insert(crate::api::names::VOLUME_BACKEND.to_owned(), "fast".to_owned());
    let mut by_hand = volume("by-hand", "nfs", "/export/by-hand");
    by_hand.metadata.annotations = None;
    let volumes = vec![ours, created_under_alias, by_hand, volume("a", "nfs", "/export/a")];
    let observed = observed(volumes, vec![backend("fast", "nfs", "/export")]);
    let names = |plan: &MigrationPlan| {
        plan.volumes
            .iter()
            .map(|volume| volume.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&observed.plan(&[])), ["pvc-a"]);
    assert_eq!(names(&observed.plan(&[OLD.to_owned()])), ["pvc-a"]);
    assert!(observed.plan(&["third/name".to_owned()]).provisioners.is_empty());
}
