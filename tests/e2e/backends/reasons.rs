//! The reason of each failure in the output of kubectl and on the waiting claim, and the time until the claim is
//! provisioned after the fix.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::time::Duration;

use rig::{Access, Proxy, Squash, TestEnv, objects::condition};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::support::shared::{self, Test};

/// A call to a silent server times out after 10 s, and an unready backend is probed every second.
pub const SEEN: Duration = Duration::from_secs(180);
/// Type of the condition of a claim that is being provisioned.
pub const PROVISIONED: &str = "nfs-operator.io/Provisioned";

/// A backend that cannot serve, and a claim that waits for it with the same reason.
pub struct Broken<'a> {
    env: &'a TestEnv,
    pub backend: Value,
    claim: Value,
    /// The message about the reason.
    message: String,
}

impl<'a> Broken<'a> {
    /// Creates a backend whose first probe fails.
    pub async fn from_the_start(env: &'a TestEnv, spec: Value, reasons: &[&str]) -> rig::Result<Self> {
        let backend = env.objects.create(&env.backend("backend", spec)).await?;
        Self::found(env, backend, reasons).await
    }

    /// Waits until a backend is not Ready, and creates a claim that waits for it.
    pub async fn found(env: &'a TestEnv, backend: Value, reasons: &[&str]) -> rig::Result<Self> {
        let seen = wait_reason(env, &backend, "Ready", reasons).await?;
        let reason = seen["reason"].as_str().unwrap();
        let message = seen["message"].as_str().unwrap().to_owned();
        assert!(message.contains(": ") || message.contains("; "), "no remedy: {message}");
        // The next probe may have had another result, if the server answered it late.
        rig::wait::until("kubectl to print the reason", SEEN, async || {
            let printed = kubectl_columns(env, &backend)
                .await
                .map_err(|error| error.to_string())?;
            match printed.get(1..3) == Some(["False".into(), reason.to_owned()].as_slice()) {
                true => Ok(()),
                false => Err(format!("{printed:?}")),
            }
        })
        .await?;
        let parameters = json!({"backend": backend.pointer("/metadata/name")});
        let class = env.objects.create(&env.class("class", parameters)).await?;
        let claim = env.objects.create(&env.claim("waiting", &class)).await?;
        let waits = wait_reason(env, &claim, PROVISIONED, &[reason]).await?;
        assert!(
            waits["message"].as_str().unwrap().contains(&env.unique_name("backend")),
            "{waits}"
        );
        Ok(Self {
            env,
            backend,
            claim,
            message,
        })
    }

    /// Waits until the claim is provisioned after the fix. The probe wakes the claim: its retry timer is longer than
    /// the timeout.
    pub async fn recovers(&self) -> rig::Result<Value> {
        let ready = self
            .env
            .objects
            .wait_condition(&self.backend, "Ready", "True", None, SEEN);
        let ready = ready.await?;
        let volume = self.env.wait_bound(&self.claim).await?;
        let provisioned = self
            .env
            .objects
            .wait_condition(&self.claim, PROVISIONED, "True", None, SEEN);
        let took = since(&provisioned.await?) - since(&ready);
        // Both are truncated to whole seconds.
        assert!(took >= -1, "{} s before the probe", -took);
        Ok(volume)
    }
}

/// Waits for a condition that is False with one of these reasons.
pub async fn wait_reason(env: &TestEnv, object: &Value, kind: &str, reasons: &[&str]) -> rig::Result<Value> {
    let what = format!("to report {kind}=False with one of {reasons:?}");
    env.objects
        .wait(object, &what, SEEN, |found| match condition(found, kind) {
            Some(found) if found["status"] == "False" && reasons.iter().any(|reason| found["reason"] == *reason) => {
                Ok(found.clone())
            }
            _ => Err("not yet".into()),
        })
        .await
}

/// Returns the columns that `kubectl get nfsb` prints of a backend.
async fn kubectl_columns(env: &TestEnv, backend: &Value) -> rig::Result<Vec<String>> {
    let name = backend.pointer("/metadata/name").and_then(Value::as_str).unwrap();
    let printed = env.rig.cluster.kubectl(["get", "nfsb", name]).await?;
    let mut lines = printed.lines();
    let head: Vec<_> = lines.next().unwrap().split_whitespace().take(3).collect();
    assert_eq!(head, ["NAME", "READY", "REASON"]);
    Ok(lines.next().unwrap().split_whitespace().map(String::from).collect())
}

/// Returns the time of the last transition of a condition, in seconds since 1970.
pub fn since(condition: &Value) -> i64 {
    let text = condition["lastTransitionTime"].as_str().unwrap();
    text.parse::<jiff::Timestamp>().unwrap().as_second()
}

#[tokio::test]
async fn a_host_name_that_does_not_resolve_is_reported_and_claims_wait() -> Test {
    let env = TestEnv::new("no-name").await?;
    // RFC 6761: never resolves.
    let spec = json!({"server": "nowhere.invalid"});
    let broken = Broken::from_the_start(&env, spec, &["NameResolutionFailed"]).await?;
    env.objects
        .patch(&broken.backend, json!({"spec": {"server": "127.0.0.1"}}))
        .await?;
    broken.recovers().await?;
    Ok(())
}

#[tokio::test]
async fn a_server_that_stops_listening_later_is_reported_as_well() -> Test {
    let env = TestEnv::new("closed").await?;
    let proxy = Proxy::start(nfs_address(&env)).await?;
    let spec = json!({"nfs": {"port": proxy.port()}});
    let backend = shared::backend(&env, "backend", spec).await?;
    proxy.refuse(true).await?;
    proxy.cut().await;
    let broken = Broken::found(&env, backend, &["ConnectionRefused"]).await?;
    proxy.refuse(false).await?;
    broken.recovers().await?;
    Ok(())
}

#[tokio::test]
async fn a_server_that_accepts_connections_and_never_replies_is_reported_and_claims_wait() -> Test {
    let env = TestEnv::new("silent").await?;
    let proxy = Proxy::start(nfs_address(&env)).await?;
    proxy.hang(true);
    let spec = json!({"nfs": {"port": proxy.port()}});
    let broken = Broken::from_the_start(&env, spec, &["ServerNotResponding"]).await?;
    proxy.hang(false);
    broken.recovers().await?;
    Ok(())
}

#[tokio::test]
async fn a_host_that_accepts_no_connection_is_reported_and_claims_wait() -> Test {
    let env = TestEnv::new("timed-out").await?;
    let (silent, _waiting) = full_listener().await?;
    let port = silent.local_addr()?.port();
    let spec = json!({"nfs": {"port": port}});
    let broken = Broken::from_the_start(&env, spec, &["ConnectionTimedOut"]).await?;
    let cure = json!({"spec": {"nfs": {"port": env.nfs_port()}}});
    env.objects.patch(&broken.backend, cure).await?;
    broken.recovers().await?;
    Ok(())
}

/// Returns a listener with a full queue. The kernel drops further connection requests, like a firewall.
async fn full_listener() -> std::io::Result<(TcpListener, Vec<TcpStream>)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let listener = socket.listen(0)?;
    let mut waiting = Vec::new();
    // On the loopback, a connection is established at once or never. If the queue was not full, it would accept that of
    // the operator.
    while let Ok(created) =
        tokio::time::timeout(Duration::from_secs(5), TcpStream::connect(listener.local_addr()?)).await
    {
        waiting.push(created?);
    }
    Ok((listener, waiting))
}

#[tokio::test]
async fn a_missing_export_path_is_reported_and_claims_wait() -> Test {
    let env = TestEnv::new("no-path").await?;
    let spec = json!({"path": format!("{}/later", env.export())});
    let broken = Broken::from_the_start(&env, spec, &["ExportNotFound"]).await?;
    fs::create_dir(env.data().join("later"))?;
    let volume = broken.recovers().await?;
    assert!(env.directory(&volume)?.starts_with(env.data().join("later")));
    Ok(())
}

#[tokio::test]
async fn an_export_that_becomes_read_only_is_reported_and_claims_wait() -> Test {
    let env = TestEnv::new("turns-ro").await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    change_export(&env, |export| export.access = Access::ReadOnly).await?;
    let broken = Broken::found(&env, backend, &["ReadOnly"]).await?;
    change_export(&env, |export| export.access = Access::ReadWrite).await?;
    broken.recovers().await?;
    Ok(())
}

#[tokio::test]
async fn a_squashed_root_is_reported_if_an_owner_is_requested_and_the_claim_waits() -> Test {
    let env = TestEnv::with_export("squashed", |export| export.squash(Squash::Root)).await?;
    chown(env.data(), Some(65534), Some(65534))?;
    let spec = json!({"directory": {"uid": 1234, "gid": 1234}});
    let broken = Broken::from_the_start(&env, spec, &["RootSquashed"]).await?;
    // Without a request that needs root, the same export works.
    let cure = json!({"spec": {"directory": {"uid": null, "gid": null}}});
    env.objects.patch(&broken.backend, cure).await?;
    let volume = broken.recovers().await?;
    let created = fs::metadata(env.directory(&volume)?)?;
    assert_eq!((created.uid(), created.mode() & 0o7777), (65534, 0o777));
    Ok(())
}

#[tokio::test]
async fn a_squashed_root_that_may_not_write_is_reported_with_the_owner_of_the_export() -> Test {
    let env = TestEnv::with_export("closed", |export| export.squash(Squash::Root)).await?;
    chown(env.data(), Some(2000), Some(2000))?;
    fs::set_permissions(env.data(), fs::Permissions::from_mode(0o755))?;
    let broken = Broken::from_the_start(&env, json!({}), &["AccessDenied"]).await?;
    for part in ["mode 0755 and belongs to 2000:2000", "spec.nfs.auth.sys"] {
        assert!(broken.message.contains(part), "{}", broken.message);
    }
    let cure = json!({"spec": {"nfs": {"auth": {"sys": {"uid": 2000, "gid": 2000}}}}});
    env.objects.patch(&broken.backend, cure).await?;
    broken.recovers().await?;
    Ok(())
}

#[tokio::test]
async fn an_export_that_its_user_may_not_write_any_more_is_reported_with_its_owner() -> Test {
    let env = TestEnv::new("taken").await?;
    chown(env.data(), Some(2000), Some(2000))?;
    let auth = json!({"nfs": {"auth": {"sys": {"uid": 2000, "gid": 2000}}}});
    shared::backend(&env, "backend", auth).await?;
    chown(env.data(), Some(0), Some(0))?;
    fs::set_permissions(env.data(), fs::Permissions::from_mode(0o755))?;
    let class = env.class("class", json!({"backend": env.unique_name("backend")}));
    let class = env.objects.create(&class).await?;
    let claim = env.objects.create(&env.claim("waiting", &class)).await?;
    let waits = wait_reason(&env, &claim, PROVISIONED, &["AccessDenied"]).await?;
    for part in ["mode 0755 and belongs to 0:0", "spec.nfs.auth.sys"] {
        assert!(waits["message"].as_str().unwrap().contains(part), "{waits}");
    }
    Ok(())
}

#[tokio::test]
async fn an_export_without_its_identity_is_reported_and_claims_wait() -> Test {
    let env = TestEnv::new("swapped").await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    let (own, aside) = (env.data().join(".nfs-operator"), env.data().join("aside"));
    fs::rename(&own, &aside)?;
    let broken = Broken::found(&env, backend, &["IdentityMismatch"]).await?;
    assert!(!own.exists(), "nothing is created on a foreign export");
    fs::rename(&aside, &own)?;
    broken.recovers().await?;
    Ok(())
}

#[tokio::test]
async fn an_export_without_inodes_is_reported_and_claims_wait() -> Test {
    let env = TestEnv::with_export("inodes", |export| export.tmpfs(16 << 20, Some(64))).await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    let ballast = env.data().join("ballast");
    fs::create_dir(&ballast)?;
    // A probe that is under way gives the inodes of its files back.
    rig::wait::until("the inodes to run out", SEEN, async || {
        let created = fs::read_dir(&ballast).map_err(|error| error.to_string())?.count();
        let unlimited = (created..64).all(|number| empty_file(&ballast.join(number.to_string())));
        assert!(!unlimited, "{created} of 64 existed");
        let found = env.objects.get(&backend).await.map_err(|error| error.to_string())?;
        let found = found.ok_or("the backend is gone")?;
        match condition(&found, "Ready") {
            Some(ready) if ready["reason"] == "NoInodes" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let broken = Broken::found(&env, backend, &["NoInodes"]).await?;
    fs::remove_dir_all(ballast)?;
    broken.recovers().await?;
    Ok(())
}

fn empty_file(path: &Path) -> bool {
    fs::File::create(path).is_ok()
}

async fn change_export(env: &TestEnv, change: impl FnOnce(&mut rig::Export)) -> rig::Result<()> {
    let mut nfs = env.rig.nfs.lock().await;
    nfs.change_export(&env.export(), change).await
}

pub fn nfs_address(env: &TestEnv) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], env.nfs_port()))
}
