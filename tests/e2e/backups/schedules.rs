//! Schedules of backups.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rig::objects::{condition, merge, reference};
use rig::{Objects, TestEnv, wait};
use serde_json::{Value, json};

use super::{archive_of_backup, class_with_backups, nfs_backup, tenant};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::denial::deny;
use crate::support::shared::{self, TIMEOUT, Test, text};

fn schedule(namespace: &str, name: &str, spec: &Value) -> Value {
    let mut object = reference("nfs-operator.io/v1alpha1", "NfsBackupSchedule", Some(namespace), name);
    merge(&mut object, &json!({ "spec": spec }));
    object
}

/// Returns the backups of a namespace.
async fn backups(objects: &Objects, namespace: &str) -> rig::Result<Vec<Value>> {
    objects.list(&nfs_backup(namespace, "any", &json!({}))).await
}

/// Waits until the condition Ready of a schedule has this reason. Returns the message.
async fn reported(objects: &Objects, schedule: &Value, reason: &str) -> rig::Result<String> {
    let has = |found: &Value| {
        let ready = condition(found, "Ready").cloned().unwrap_or_default();
        match text(&ready, "/reason") == reason {
            true => Ok(text(&ready, "/message").to_owned()),
            false => Err(ready.to_string()),
        }
    };
    objects.wait(schedule, "to report a reason", TIMEOUT, has).await
}

/// Waits until a schedule recorded that it requested the backups of a scheduled time.
async fn handled(objects: &Objects, schedule: &Value) -> rig::Result<Value> {
    let has = |found: &Value| match found["status"]["lastScheduleTime"].is_string() {
        true => Ok(found.clone()),
        false => Err(found["status"].to_string()),
    };
    objects.wait(schedule, "to have run", TIMEOUT, has).await
}

#[tokio::test]
async fn a_schedule_backs_up_the_claims_that_it_selects_and_keeps_the_last_backup() -> Test {
    let env = TestEnv::new("schedule").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "20Mi"})).await?;
    let mut labeled = env.claim("labeled", &class);
    merge(&mut labeled, &json!({"metadata": {"labels": {"backup": "often"}}}));
    for claim in [labeled, env.claim("named", &class), env.claim("other", &class)] {
        let claim = env.objects.create(&claim).await?;
        env.wait_bound(&claim).await?;
    }
    // Another tenant's claim of the same name, with the same label.
    let neighbor = TestEnv::new("schedule-neighbor").await?;
    let mut of_neighbor = neighbor.claim("named", &class);
    merge(&mut of_neighbor, &json!({"metadata": {"labels": {"backup": "often"}}}));
    let of_neighbor = neighbor.objects.create(&of_neighbor).await?;
    neighbor.wait_bound(&of_neighbor).await?;
    let tenant = tenant(&env).await?;
    let claims = json!({"matchNames": ["named", "absent"], "selector": {"matchLabels": {"backup": "often"}}});
    let spec = json!({"schedule": "* * * * *", "claims": claims, "keepLast": 1});
    let often = tenant.create(&schedule(&env.name, "often", &spec)).await?;
    let ready = async || {
        let all = backups(&env.objects, &env.name)
            .await
            .map_err(|error| error.to_string())?;
        let ready = all
            .into_iter()
            .filter(|backup| backup["status"]["state"] == "Available");
        Ok::<Vec<Value>, String>(ready.collect())
    };
    let claims_of = |backups: &[Value]| -> BTreeSet<String> {
        let names = backups
            .iter()
            .map(|backup| text(backup, "/spec/source/claimName").to_owned());
        names.collect()
    };
    let first = wait::until("the first backups", TIMEOUT, async || {
        let ready = ready().await?;
        match ready.len() {
            2 => Ok(ready),
            _ => Err(format!("{ready:?}")),
        }
    })
    .await?;
    assert_eq!(claims_of(&first), ["labeled".to_owned(), "named".to_owned()].into());
    let message = reported(&env.objects, &often, "ClaimsSkipped").await?;
    assert!(message.contains("absent (does not exist"), "{message}");
    let found = env.objects.get(&often).await?.ok_or("no schedule")?;
    // The next minute may have come.
    let scheduled = text(&first[0], "/spec/scheduleRef/scheduledTime");
    assert!(text(&found, "/status/lastScheduleTime") >= scheduled, "{found}");
    assert!(
        text(&found, "/status/nextScheduleTime") > text(&found, "/status/lastScheduleTime"),
        "{found}"
    );
    // The next ones replace them.
    wait::until("newer backups instead of the first ones", TIMEOUT, async || {
        let ready = ready().await?;
        let is_first = |backup: &Value| {
            first
                .iter()
                .any(|first| first["metadata"]["uid"] == backup["metadata"]["uid"])
        };
        match ready.len() == 2 && !ready.iter().any(is_first) {
            true => Ok(()),
            false => Err(format!("{ready:?}")),
        }
    })
    .await?;
    for backup in &first {
        env.objects.wait_gone(&archive_of_backup(backup), TIMEOUT).await?;
    }
    env.objects.patch(&often, json!({"spec": {"suspend": true}})).await?;
    reported(&env.objects, &often, "Suspended").await?;
    // Older ones may be being deleted, the newest of each claim is kept.
    let newest_of_each = |all: Vec<Value>| {
        let key = |backup: &Value, path: &str| text(backup, path).to_owned();
        let mut newest = BTreeMap::new();
        for backup in all.iter().filter(|backup| backup["status"]["state"] == "Available") {
            let last = newest.entry(key(backup, "/spec/source/claimName")).or_default();
            *last = key(backup, "/spec/scheduleRef/scheduledTime").max(std::mem::take(last));
        }
        newest
    };
    let before = newest_of_each(backups(&env.objects, &env.name).await?);
    assert_eq!(before.len(), 2, "{before:?}");
    tenant.delete(&often).await?;
    env.objects.wait_gone(&often, TIMEOUT).await?;
    let after = newest_of_each(backups(&env.objects, &env.name).await?);
    assert!(
        before.iter().all(|(claim, newest)| after.get(claim) >= Some(newest)),
        "{after:?}"
    );
    assert!(backups(&env.objects, &neighbor.name).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_schedule_reports_what_is_wrong_with_it() -> Test {
    let env = TestEnv::new("schedule-wrong").await?;
    let claims = json!({"selector": {}});
    for (name, spec, field) in [
        (
            "cron",
            json!({"schedule": "61 2 * * *", "claims": claims}),
            "spec.schedule",
        ),
        (
            "never",
            json!({"schedule": "0 0 30 2 *", "claims": claims}),
            "spec.schedule",
        ),
        (
            "zone",
            json!({"schedule": "@daily", "timeZone": "Mars/Olympus", "claims": claims}),
            "spec.timeZone",
        ),
        (
            "selector",
            json!({"schedule": "@daily", "claims": {"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}}),
            "spec.claims.selector",
        ),
    ] {
        let object = env.objects.create(&schedule(&env.name, name, &spec)).await?;
        let message = reported(&env.objects, &object, "InvalidSpec").await?;
        assert!(message.starts_with(field), "{message}");
    }
    for (spec, words) in [
        (
            json!({"schedule": "2 * * *", "claims": claims}),
            "schedule must be five fields",
        ),
        (
            json!({"schedule": "@reboot", "claims": claims}),
            "schedule must be five fields",
        ),
        (
            json!({"schedule": "@daily", "timeZone": "../etc/passwd", "claims": claims}),
            "timeZone must be a name of the IANA database",
        ),
        (
            json!({"schedule": "@daily", "claims": claims, "jitter": "25h"}),
            "jitter must be a duration from 1s to 24h",
        ),
        (
            json!({"schedule": "@daily", "claims": claims, "startingDeadline": "soon"}),
            "startingDeadline must be a duration",
        ),
        (
            json!({"schedule": "@daily", "claims": {}}),
            "claims must select something",
        ),
        (
            json!({"schedule": "@daily", "claims": claims, "keepLast": 0}),
            "keepLast",
        ),
    ] {
        let refused = env.objects.create(&schedule(&env.name, "refused", &spec)).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let empty = json!({"schedule": "* * * * *", "claims": {"matchNames": [], "selector": {"matchLabels": {"a": "b"}}}});
    let empty = env.objects.create(&schedule(&env.name, "empty", &empty)).await?;
    reported(&env.objects, &empty, "NoClaimsSelected").await?;
    assert!(shared::archives(env.data())?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_without_the_operator_are_made_up_for_once_unless_their_deadline_passed() -> Test {
    let settings = json!({"probeInterval": "1s", "backups": {"selfService": {"maxBytesPerNamespace": "10Gi"}}});
    let mut env = DedicatedCluster::start(settings).await?;
    let claim = env.claim("data");
    env.objects.create(&claim).await?;
    env.bound(&claim).await?;
    env.operator.kill9().await?;
    // Two scheduled times pass, and the next one is an hour later.
    let minute = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs() / 60)
    };
    let began = minute();
    let twice = format!("{},{} * * * *", (began + 1) % 60, (began + 2) % 60);
    let spec = json!({"schedule": twice, "claims": {"matchNames": ["data"]}});
    let late = env.objects.create(&schedule("default", "late", &spec)).await?;
    let strict = json!({"schedule": twice, "claims": {"matchNames": ["data"]}, "startingDeadline": "1s"});
    let strict = env.objects.create(&schedule("default", "strict", &strict)).await?;
    while minute() < began + 2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The deadline passes, too.
    tokio::time::sleep(Duration::from_secs(3)).await;
    env.operator.restart().await?;
    reported(&env.objects, &strict, "ScheduleMissed").await?;
    let found = handled(&env.objects, &late).await?;
    let of_late = |all: Vec<Value>| {
        let of_late = all
            .into_iter()
            .filter(|backup| backup["spec"]["scheduleRef"]["name"] == "late");
        of_late.collect::<Vec<_>>()
    };
    let made = of_late(backups(&env.objects, "default").await?);
    assert_eq!(
        made.iter()
            .map(|backup| backup["spec"]["scheduleRef"]["scheduledTime"].clone())
            .collect::<Vec<_>>(),
        [found["status"]["lastScheduleTime"].clone()],
    );
    // Killed after the backup was requested and before that was recorded, the operator requests nothing again.
    env.operator.kill9().await?;
    env.objects
        .patch_status(&late, json!({"status": {"lastScheduleTime": null}}))
        .await?;
    env.operator.restart().await?;
    handled(&env.objects, &late).await?;
    let again = of_late(backups(&env.objects, "default").await?);
    let uids = |all: &[Value]| -> Vec<Value> { all.iter().map(|backup| backup["metadata"]["uid"].clone()).collect() };
    assert_eq!(uids(&again), uids(&made));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_scheduled_backups_are_gone_is_overdue_until_there_is_another_one() -> Test {
    let allowed = json!({"backups": {"selfService": {"maxBytesPerNamespace": "10Gi"}}});
    let mut spec = json!({"probeInterval": "1s"});
    merge(&mut spec, &allowed);
    let env = DedicatedCluster::start_with_args(spec, &["--volume-metrics"]).await?;
    let claim = env.claim("data");
    env.objects.create(&claim).await?;
    env.bound(&claim).await?;
    let once = nfs_backup("default", "once", &json!({"source": {"claimName": "data"}}));
    let once = env.objects.create(&once).await?;
    env.objects
        .wait_condition(&once, "Ready", "True", None, TIMEOUT)
        .await?;
    let overdue = async || {
        let text = env.operator.metrics().await.map_err(|error| error.to_string())?;
        let series = "nfs_operator_claim_backup_overdue{claim=\"data\",claim_namespace=\"default\"} ";
        let value = text.lines().find_map(|line| line.strip_prefix(series));
        Ok::<_, String>(value.map(str::to_owned))
    };
    let is_reported = async |expected: Option<&str>| {
        wait::until("whether the claim is overdue", TIMEOUT, async || {
            match overdue().await? {
                value if value.as_deref() == expected => Ok(()),
                value => Err(format!("{value:?}, not {expected:?}")),
            }
        })
        .await
    };
    assert_eq!(overdue().await?, None, "one that was requested once");
    let every_minute = json!({"schedule": "* * * * *", "claims": {"matchNames": ["data"]}});
    let often = env.objects.create(&schedule("default", "often", &every_minute)).await?;
    wait::until("backups of two times", TIMEOUT, async || {
        let all = backups(&env.objects, "default")
            .await
            .map_err(|error| error.to_string())?;
        let scheduled = all.iter().filter(|backup| backup["spec"]["scheduleRef"].is_object());
        match scheduled
            .filter(|backup| backup["status"]["state"] == "Available")
            .count()
        {
            0 | 1 => Err(format!("{all:?}")),
            _ => Ok(()),
        }
    })
    .await?;
    is_reported(Some("0")).await?;
    let backend = env.backend_object(&json!({}));
    env.objects.patch(&backend, json!({"spec": {"backups": null}})).await?;
    wait::until("the claim without backups to be overdue", TIMEOUT, async || {
        // One may be complete after the others were deleted.
        for archive in env.archives().await.map_err(|error| error.to_string())? {
            let archive = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, &archive);
            env.objects.delete(&archive).await.map_err(|error| error.to_string())?;
        }
        match overdue().await? {
            Some(value) if value == "1" => Ok(()),
            value => Err(format!("{value:?}")),
        }
    })
    .await?;
    env.objects.patch(&backend, json!({ "spec": allowed })).await?;
    is_reported(Some("0")).await?;
    env.objects.patch(&often, json!({"spec": {"suspend": true}})).await?;
    is_reported(None).await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_whose_backup_is_refused_is_skipped_and_the_others_are_backed_up() -> Test {
    let env = TestEnv::new("schedule-refused").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "20Mi"})).await?;
    for name in ["a-refused", "b-permitted"] {
        let claim = env.objects.create(&env.claim(name, &class)).await?;
        env.wait_bound(&claim).await?;
    }
    let created = json!({
        "apiGroups": ["nfs-operator.io"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["nfsbackups"],
    });
    let constraints = json!({
        "resourceRules": [created],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": env.name}},
    });
    let validation = json!({"expression": "object.spec.source.claimName != 'a-refused'", "message": "one too many"});
    let spec = json!({"matchConstraints": constraints, "validations": [validation]});
    let denial = deny(&env.objects, &format!("refuses-{}", env.name), &spec).await?;
    let claims = json!({"matchNames": ["a-refused", "b-permitted"]});
    let every_minute = json!({"schedule": "* * * * *", "claims": claims});
    let often = env.objects.create(&schedule(&env.name, "often", &every_minute)).await?;
    let message = reported(&env.objects, &often, "ClaimsSkipped").await?;
    assert!(message.contains("requested 1 backup at"), "{message}");
    assert!(message.contains("a-refused (its NfsBackup is refused: "), "{message}");
    assert!(message.contains("one too many"), "{message}");
    env.objects.patch(&often, json!({"spec": {"suspend": true}})).await?;
    for object in &denial {
        env.objects.delete(object).await?;
    }
    Ok(())
}
