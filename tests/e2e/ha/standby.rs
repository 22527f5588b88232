//! Several operators: one leads, the others stand by and take over.

use std::time::{Duration, Instant};

use rig::objects::{merge, reference};
use rig::{Objects, Operator, cluster::Component};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::audit::{
    NfsLeases, assert_each_once, has_written, holder, lease, next_holder, one_after_the_other, requests,
};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

/// Short lease timings, so that a test sees many leaders.
const SHORT: [&str; 7] = [
    "--leader-elect",
    "--lease-duration",
    "3s",
    "--renew-deadline",
    "2s",
    "--retry-period",
    "500ms",
];

/// Timings of operators that survive a machine that stalls. A Lease of theirs does not expire during a test.
const PATIENT: [&str; 4] = ["--lease-duration", "10m", "--renew-deadline", "5m"];

/// Starts this number of operators with short lease timings, one of which leads. The backend is ready already.
///
/// On a busy machine, a leader may miss the renewal of its short Lease and exit at any time: see [`keep_running`].
async fn several(count: usize) -> Result<(DedicatedCluster, Vec<Operator>), Failure> {
    let env = DedicatedCluster::start_with_args(json!({"probeInterval": "1s"}), &["--leader-elect"]).await?;
    let former = holder(&env.objects).await?.ok_or("no operator leads")?;
    env.operator.terminate().await?;
    let mut operators = Vec::new();
    for _ in 0..count {
        operators.push(env.start_operator(&SHORT).await?);
    }
    tokio::select! {
        next = next_holder(&env.objects, &former) => drop(next?),
        failed = keep_running(&mut operators) => return Err(failed),
    }
    Ok((env, operators))
}

/// Waits until an operator exits by itself. Fails if it exits with success.
async fn fails(operator: &Operator) -> Result<String, Failure> {
    let ended = rig::wait::until("an operator to end", TIMEOUT, async || {
        operator.exit_status().ok_or_else(|| "it runs".to_owned())
    })
    .await?;
    assert!(!ended.success(), "{ended}");
    Ok(std::fs::read_to_string(operator.log())?)
}

/// Creates claims in sequence until it is stopped.
struct Traffic {
    enough: oneshot::Sender<()>,
    making: JoinHandle<Vec<Value>>,
}

impl Traffic {
    fn begin(env: &DedicatedCluster, word: &str) -> Self {
        let (enough, mut reported) = oneshot::channel();
        let objects = env.objects.clone();
        let claims: Vec<Value> = (0..2000).map(|n| env.claim(&format!("{word}-{n}"))).collect();
        let making = tokio::spawn(async move {
            let mut created = Vec::new();
            for claim in claims {
                if reported.try_recv() != Err(oneshot::error::TryRecvError::Empty) {
                    break;
                }
                objects.create(&claim).await.unwrap();
                created.push(claim);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            created
        });
        Self { enough, making }
    }

    async fn end(self) -> Result<Vec<Value>, Failure> {
        // All claims exist already if nobody receives.
        let _ = self.enough.send(());
        Ok(self.making.await?)
    }
}

/// Waits until the operator that leads has written something. Returns its identity.
async fn leader_at_work(env: &DedicatedCluster, operators: &mut [Operator]) -> Result<String, Failure> {
    let at_work = rig::wait::until("the leader to write", TIMEOUT, async || {
        let leader = holder(&env.objects).await.map_err(|error| error.to_string())?;
        let leader = leader.ok_or("no operator leads")?;
        match has_written(&env.cluster.audit_log(), &leader) {
            Ok(true) => Ok(leader),
            other => Err(format!("{leader}: {other:?}")),
        }
    });
    tokio::select! {
        leader = at_work => Ok(leader?),
        failed = keep_running(operators) => Err(failed),
    }
}

/// Kills the leader, or stops it until another one leads.
async fn unseat(operators: &mut [Operator], objects: &Objects, former: &str, stop: bool) -> Test {
    let is_leader = |operator: &Operator| Some(operator.instance()) == former.split('/').next();
    let place = operators.iter().position(is_leader).ok_or("the leader is unknown")?;
    operators.swap(0, place);
    let (leader, others) = operators.split_first_mut().ok_or("no operators")?;
    let since = Instant::now();
    if stop {
        leader.pause()?;
    } else {
        leader.kill9().await?;
    }
    tokio::select! {
        next = next_holder(objects, former) => drop(next?),
        failed = keep_running(others) => return Err(failed),
    }
    let how = if stop { "SIGSTOP" } else { "SIGKILL" };
    eprintln!("{how}: another held the Lease of 3 s after {:?}", since.elapsed());
    if stop {
        // It resumes during calls and assumes that it leads.
        leader.resume()?;
        let log = fails(leader).await?;
        assert!(log.contains("lost the Lease nfs-operator-system/nfs-operator"), "{log}");
    }
    leader.restart().await?;
    Ok(())
}

/// Restarts operators that exited, as a kubelet does. Returns only on failure.
async fn keep_running(operators: &mut [Operator]) -> Failure {
    loop {
        for operator in operators.iter_mut() {
            if operator.exit_status().is_some()
                && let Err(error) = operator.restart().await
            {
                return error.into();
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_operators_killed_and_stopped_in_turn_never_write_at_the_same_time_and_duplicate_nothing() -> Test {
    let (env, mut operators) = several(3).await?;
    let leases = NfsLeases::observe(&env.proxy);
    let traffic = Traffic::begin(&env, "data");
    for round in 0..4 {
        // During work.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let former = leader_at_work(&env, &mut operators).await?;
        unseat(&mut operators, &env.objects, &former, round % 2 == 0).await?;
    }
    let claims = traffic.end().await?;
    eprintln!("{} claims", claims.len());
    tokio::select! {
        checked = assert_each_once(&env, &claims) => checked?,
        failed = keep_running(&mut operators) => return Err(failed),
    }
    let order = one_after_the_other(&env.cluster.audit_log())?;
    assert!(order.len() >= 5, "the first one, and one for each round: {order:?}");
    leases.assert_no_return();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_operator_hands_over_to_a_standby_that_touched_nothing_before() -> Test {
    // The remaining lease would outlast the test.
    let args = [&["--leader-elect"][..], &PATIENT].concat();
    let env = DedicatedCluster::start_with_args(json!({"probeInterval": "1s"}), &args).await?;
    let former = holder(&env.objects).await?.ok_or("no operator leads")?;
    let leases = NfsLeases::observe(&env.proxy);
    let standby = env.start_operator(&args).await?;
    standby.wait_ready().await?;
    assert_eq!(
        standby.probe("/readyz").await?,
        format!("ok: standby, {former} leads\n")
    );
    let leads = async |operator: &Operator| -> Result<bool, Failure> {
        Ok(operator
            .metrics()
            .await?
            .lines()
            .any(|line| line == "nfs_operator_leader 1"))
    };
    assert!(leads(&env.operator).await? && !leads(&standby).await?);
    assert!(
        standby
            .metrics()
            .await?
            .lines()
            .any(|line| line == "nfs_operator_leader 0")
    );

    let traffic = Traffic::begin(&env, "data");
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The leader may have had to connect again, if the machine stalled for longer than its NFS lease.
    let before = leases.seen();
    let since = Instant::now();
    let ended = env.operator.terminate().await?;
    eprintln!("SIGTERM: ended after {:?}", since.elapsed());
    assert_eq!(ended.code(), Some(0));
    let log = std::fs::read_to_string(env.operator.log())?;
    assert!(log.contains("released the Lease"), "{log}");
    next_holder(&env.objects, &former).await?;
    eprintln!("SIGTERM: the standby held the Lease after {:?}", since.elapsed());
    rig::wait::until("the standby to be ready", TIMEOUT, async || {
        match standby.probe("/readyz").await {
            Ok(reported) if reported == "ok\n" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    eprintln!("SIGTERM: the standby was at work after {:?}", since.elapsed());
    assert!(leads(&standby).await?);
    let came = rig::wait::until("the standby to connect to the NFS server", TIMEOUT, async || {
        let came = leases.seen().split_off(before.len());
        if came.is_empty() {
            Err("nobody connected".to_owned())
        } else {
            Ok(came)
        }
    })
    .await?;
    assert!(
        !came.iter().any(|client| before.contains(client)),
        "a standby does not come near the NFS server: {before:?} {came:?}"
    );
    let claims = traffic.end().await?;
    assert_each_once(&env, &claims).await?;
    assert_eq!(one_after_the_other(&env.cluster.audit_log())?.len(), 2);
    Ok(())
}

/// Waits until the operator's account may read a resource: the API server knows a new binding after a moment.
async fn wait_permitted(env: &DedicatedCluster, namespace: &str, resource: &str) -> rig::Result<()> {
    let account = "--as=system:serviceaccount:nfs-operator-system:nfs-operator";
    let question = ["auth", "can-i", "get", resource, "-n", namespace, account];
    rig::wait::until("the binding to take effect", TIMEOUT, async || {
        // It exits with an error if the answer is no.
        let answer = env.cluster.kubectl(question).await;
        answer.map(drop).map_err(|error| error.to_string())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_operator_refuses_to_start_and_reports_the_first() -> Test {
    let env = DedicatedCluster::start(json!({})).await?;
    let first = holder(&env.objects).await?.ok_or("no operator leads")?;
    let second = env.start_operator(&PATIENT).await?;
    let log = fails(&second).await?;
    assert!(log.contains(&format!("is held by {first}")), "{log}");
    assert!(log.contains("--leader-elect"), "{log}");

    // Another installation, with its own namespace and permissions.
    for (kind, rest) in [
        (
            "Role",
            json!({"rules": [
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]},
            ]}),
        ),
        (
            "RoleBinding",
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "elsewhere"},
                "subjects": [{"kind": "ServiceAccount", "name": "nfs-operator", "namespace": "nfs-operator-system"}],
            }),
        ),
    ] {
        let mut object = reference("rbac.authorization.k8s.io/v1", kind, Some("default"), "elsewhere");
        merge(&mut object, &rest);
        env.objects.create(&object).await?;
    }
    env.cluster
        .expect_violation("not granted by config/rbac but by RoleBinding \"elsewhere/default\"")?;
    wait_permitted(&env, "default", "leases.coordination.k8s.io").await?;
    let args = [
        "--lease-namespace",
        "default",
        "--records-namespace",
        "default",
        "--leader-elect",
    ];
    let elsewhere = env.start_operator(&[&args[..], &PATIENT].concat()).await?;
    let log = fails(&elsewhere).await?;
    let second_key = reference("v1", "Secret", Some("default"), "nfs-operator-records");
    assert_eq!(env.objects.get(&second_key).await?, None);
    assert!(
        log.contains("another nfs-operator is installed in this cluster"),
        "{log}"
    );
    assert!(log.contains("whose Lease is nfs-operator-system/nfs-operator"), "{log}");
    assert_eq!(holder(&env.objects).await?, Some(first));

    // An operator without the permissions reports the missing ones.
    env.cluster
        .expect_violation("refused: get leases.coordination.k8s.io in kube-system")?;
    let unable = env.start_operator(&["--lease-namespace", "kube-system"]).await?;
    let log = fails(&unable).await?;
    assert!(log.contains("cannot read the Lease kube-system/nfs-operator"), "{log}");
    assert!(log.contains("config/rbac"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_of_another_lease_name_refuses_to_start() -> Test {
    let env = DedicatedCluster::start(json!({})).await?;
    env.run_as_admin(
        "kubectl -n nfs-operator-system create role another --verb=get,list,watch,update,create --resource=leases\n\
         kubectl -n nfs-operator-system create rolebinding another --role=another \
         --serviceaccount=nfs-operator-system:nfs-operator",
    )
    .await?;
    env.cluster
        .expect_violation("not granted by config/rbac but by RoleBinding \"another/nfs-operator-system\"")?;
    wait_permitted(&env, "nfs-operator-system", "leases.coordination.k8s.io/another").await?;
    let args = ["--lease-name", "another", "--leader-elect"];
    let second = env.start_operator(&[&args[..], &PATIENT].concat()).await?;
    let log = fails(&second).await?;
    assert!(
        log.contains("another nfs-operator is installed in this cluster"),
        "{log}"
    );
    assert!(log.contains("whose Lease is nfs-operator-system/nfs-operator"), "{log}");
    assert_eq!(env.operator.exit_status(), None);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_cluster_lock_an_operator_waits_and_reports_the_remedy() -> Test {
    let mut env = DedicatedCluster::start(json!({})).await?;
    let lock = reference(
        "coordination.k8s.io/v1",
        "Lease",
        Some("kube-system"),
        "nfs-operator-cluster-lock",
    );
    env.objects.delete(&lock).await?;
    env.operator.restart().await?;
    rig::wait::until("the remedy", TIMEOUT, async || {
        match env.operator.probe("/readyz").await {
            Err(error) if error.to_string().contains("apply config/rbac") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    env.objects.create(&lock).await?;
    env.operator.wait_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_in_a_tenants_namespace_does_not_stop_the_operator() -> Test {
    let mut env = DedicatedCluster::start(json!({})).await?;
    for name in ["nfs-operator", "nfs-operator-cluster-lock"] {
        let mut tenants = reference("coordination.k8s.io/v1", "Lease", Some("default"), name);
        let spec = json!({"holderIdentity": "tenant", "leaseDurationSeconds": 1_000_000});
        merge(&mut tenants, &json!({"spec": spec}));
        env.objects.create(&tenants).await?;
    }
    env.operator.restart().await?;
    env.operator.wait_ready().await?;
    Ok(())
}

/// The renewal deadline and the retry period are short, so that a test waits for little.
const SHORT_DEADLINE: [&str; 4] = ["--renew-deadline", "2s", "--retry-period", "500ms"];

/// Waits until `/readyz` reports that writes are suspended.
async fn suspended(operator: &Operator) -> Test {
    rig::wait::until("writes to be suspended", TIMEOUT, async || {
        match operator.probe("/readyz").await {
            Err(error) if error.to_string().contains("could not be renewed") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_leader_election_writes_stop_while_the_lease_cannot_be_renewed_and_resume_afterwards() -> Test {
    let mut env = DedicatedCluster::start_with_args(json!({"probeInterval": "1s"}), &SHORT_DEADLINE).await?;
    let leases = NfsLeases::observe(&env.proxy);
    env.cluster.kill9(Component::ApiServer).await?;
    suspended(&env.operator).await?;
    env.cluster.restart(Component::ApiServer).await?;
    env.operator.wait_ready().await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    env.bound(&claim).await?;
    assert_eq!(env.operator.exit_status(), None);
    leases.assert_no_return();
    let log = std::fs::read_to_string(env.operator.log())?;
    for line in ["nothing is written until it is renewed", "writes resume"] {
        assert!(log.contains(line), "{line}: {log}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_leader_election_a_paused_operator_renews_its_lease_before_it_writes() -> Test {
    let env = DedicatedCluster::start_with_args(json!({"probeInterval": "1s"}), &SHORT_DEADLINE).await?;
    env.operator.pause()?;
    let claim = env.objects.create(&env.claim("data")).await?;
    // Longer than the deadline.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let resumed = jiff::Timestamp::now();
    env.operator.resume()?;
    env.bound(&claim).await?;
    assert_eq!(env.operator.exit_status(), None);
    let log = std::fs::read_to_string(env.operator.log())?;
    assert!(log.contains("nothing is written until it is renewed"), "{log}");
    let requests = requests(&env.cluster.audit_log())?;
    // By their times: a request from before, such as a watch, may be logged when it ends.
    let received = |request: &Value| text(request, "/requestReceivedTimestamp").parse::<jiff::Timestamp>();
    let first = requests
        .iter()
        .filter(|request| received(request).is_ok_and(|received| received >= resumed))
        .find(|request| !matches!(text(request, "/verb"), "get" | "list" | "watch"))
        .ok_or("no write")?;
    assert_eq!(text(first, "/objectRef/resource"), "leases", "{first}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_lost_its_lease_exits_and_a_deleted_lease_is_recreated() -> Test {
    let env = DedicatedCluster::start_with_args(json!({}), &["--retry-period", "500ms"]).await?;
    let first = holder(&env.objects).await?.ok_or("no operator leads")?;
    env.objects.delete(&lease()).await?;
    rig::wait::until("the Lease to be recreated", TIMEOUT, async || {
        let found = holder(&env.objects).await.map_err(|error| error.to_string())?;
        if found.as_ref() == Some(&first) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await?;
    // An annotation does not end the leadership.
    let note = json!({"metadata": {"annotations": {"by": "a person"}}});
    env.objects.patch(&lease(), note).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(env.operator.exit_status(), None);
    let given = json!({"spec": {"holderIdentity": "somebody-else"}});
    env.objects.patch(&lease(), given).await?;
    let log = fails(&env.operator).await?;
    assert!(log.contains("somebody-else holds it now"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_operator_asks_the_api_server_before_it_reconnects() -> Test {
    // Only the missing confirmation keeps the operator from reconnecting: its renewal deadline outlasts the test.
    let mut env = DedicatedCluster::start_with_args(json!({"probeInterval": "1s"}), &PATIENT).await?;
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let found = env.objects.get(&backend).await?.ok_or("no backend")?;
    let system = reference("v1", "Namespace", None, "kube-system");
    let system = env.objects.get(&system).await?.ok_or("no kube-system")?;
    let leases = NfsLeases::observe(&env.proxy);
    env.cluster.kill9(Component::ApiServer).await?;
    // Connects like another operator of this cluster.
    let owner = format!(
        "nfs-operator/{}/{}",
        text(&system, "/metadata/uid"),
        text(&found, "/metadata/uid")
    );
    let rival = nfs_client::Client::connect(nfs_client::Target {
        version: nfs_client::VersionChoice::Auto,
        port: env.proxy.port(),
        mount_port: None,
        source_port: nfs_client::SourcePort::Any,
        credential: nfs_client::Credential {
            uid: 0,
            gid: 0,
            supplementary: None,
        },
        owner: nfs_client::ClientOwner {
            owner: owner.into_bytes(),
            verifier: *b"a rival!",
        },
        deadline: TIMEOUT,
        ..nfs_client::Target::new("127.0.0.1", "/export")
    })
    .await?;
    rival.root().await?;
    // It notices with the next probe, and each attempt to reconnect reports it again.
    rig::wait::until("an attempt to reconnect", TIMEOUT, async || {
        let log = std::fs::read_to_string(env.operator.log()).map_err(|error| error.to_string())?;
        match log.matches("fenced off").count() {
            0 | 1 => Err(log),
            _ => Ok(()),
        }
    })
    .await?;
    // If it connected again before the rival came, nothing had fenced it off yet.
    let came: Vec<_> = leases
        .seen()
        .into_iter()
        .skip_while(|verifier| verifier != b"a rival!")
        .filter(|verifier| verifier != b"a rival!")
        .collect();
    assert!(came.is_empty(), "it took the NFS lease back without asking: {came:?}");
    drop(rival);
    env.cluster.restart(Component::ApiServer).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    env.bound(&claim).await?;
    assert!(leases.seen().iter().any(|verifier| verifier != b"a rival!"));
    Ok(())
}
