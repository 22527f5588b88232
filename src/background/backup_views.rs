//! Creates the NfsBackup objects that show archives of deleted claims in their namespaces.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::api::backup::{BackupSource, NfsBackup, NfsBackupSpec};
use crate::api::{NfsArchive, NfsBackend};
use crate::decide::self_service::{allowed, is_shown};
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;

/// Creates the object that shows an archive, if the namespace that the archive came from still exists, its tenants may create
/// backups on the backend, and no object has the name there.
pub async fn ensure_view(ctx: &Context, archive: &NfsArchive) -> Result<(), WriteError> {
    let (name, namespace) = (archive.name_any(), &archive.spec.claim_ref.namespace);
    let key = ObjectRef::<NfsBackup>::new(&name).within(namespace);
    let backend = ctx
        .stores
        .backends
        .get(&ObjectRef::<NfsBackend>::new(archive.backend_name()));
    let cached = ctx.namespace(namespace).zip(backend);
    let Some((cached, backend)) = cached.filter(|_| ctx.stores.backups.get(&key).is_none()) else {
        return Ok(());
    };
    if !is_shown(archive, cached.metadata.uid.as_deref().unwrap_or_default())
        || allowed(&backend, namespace, cached.labels()).is_err()
    {
        return Ok(());
    }
    // Read now: a recreated namespace of this name must not learn what its predecessor had.
    let namespaces: Api<Namespace> = Api::all(ctx.clients.calls.clone());
    let live = reads::get_metadata_opt(&namespaces, namespace).await;
    let live = live.map_err(WriteError::action("read the namespace of an archive"))?;
    let is_same = |live: &ObjectMeta| live.uid == cached.metadata.uid && live.deletion_timestamp.is_none();
    if !live.is_some_and(|live| is_same(&live.metadata)) {
        return Ok(());
    }
    let view = NfsBackup {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        spec: NfsBackupSpec {
            source: BackupSource {
                claim_name: None,
                archive_name: Some(name),
            },
            retention: None,
            consistency: None,
            max_snapshot_age: None,
            schedule_ref: None,
        },
        status: None,
    };
    let api: Api<NfsBackup> = Api::namespaced(ctx.clients.calls.clone(), namespace);
    match api.create(&PostParams::default(), &view).await {
        Ok(_) => Ok(()),
        // Somebody else has the name, the namespace is being deleted, or a policy refuses it. The next check repeats it.
        Err(error)
            if writes::http_status(&error)
                .is_some_and(|code| matches!(code, 404 | 409) || writes::is_refusal(code)) =>
        {
            Ok(())
        }
        Err(error) => Err(WriteError::action("create the NfsBackup of an archive")(error)),
    }
}
