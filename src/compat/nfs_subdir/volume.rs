//! Reclaim of volumes that nfs-subdir-external-provisioner created under a name that is now an alias. Each is located
//! on the export and recorded there before any data is changed (data-safety rule 8).

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::api::NfsBackend;
use crate::api::backend::OnDelete;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::BETA_STORAGE_CLASS;
use crate::api::parameters::{ClassParameters, ParameterError};
use crate::compat::nfs_subdir::location::{self, alias_backend, directory_on};
use crate::decide::reclaim::{Refusal, is_released};
use crate::decide::volume_directory::{archive_metadata, claim_ref};
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::backends::ProbeSnapshot;
use crate::state::context::Context;
use export_store::naming::DirectoryPath;
use export_store::{ExportError, ExportStore, VolumeDirectory};

/// Volume that nfs-subdir created, and the backend of its alias.
pub(crate) struct NfsSubdirVolume<'a> {
    ctx: &'a Context,
    volume: &'a PersistentVolume,
    alias: &'a str,
}

/// Reason why a volume cannot be reclaimed now.
pub(crate) enum PrepareError {
    /// The objects in the cluster do not match.
    Condition(PlannedCondition),
    /// The export does not match, or cannot be read.
    Export(ExportError),
}

impl From<Refusal> for PrepareError {
    fn from(refusal: Refusal) -> Self {
        Self::Condition(PlannedCondition::fails(refusal.reason, refusal.message))
    }
}

impl<'a> NfsSubdirVolume<'a> {
    pub(crate) fn new(ctx: &'a Context, volume: &'a PersistentVolume, alias: &'a str) -> Self {
        Self { ctx, volume, alias }
    }

    /// Returns the directory on the alias's backend if the address of the volume leads to exactly one.
    pub(crate) fn locate(&self) -> Result<DirectoryPath, Refusal> {
        let backends = self.ctx.stores.backends.state();
        let backends: Vec<&NfsBackend> = backends.iter().map(AsRef::as_ref).collect();
        location::locate(self.volume, self.alias, &backends)
    }

    /// Records the volume on the export. Returns its directory and the policy.
    pub(crate) async fn prepare(
        &self,
        snapshot: &ProbeSnapshot,
        export: &ExportStore,
    ) -> Result<Result<(VolumeDirectory, OnDelete), PrepareError>, WriteError> {
        let class = self.read_class().await?;
        let plan = || {
            let directory = self.locate()?;
            self.check_connection(&directory, snapshot)?;
            Ok::<_, Refusal>((directory, location::policy(class)?))
        };
        let (directory, policy) = match plan() {
            Ok(planned) => planned,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        let mut directory = VolumeDirectory {
            claim: claim_ref(self.volume),
            volume: self.volume.name_any(),
            directory,
            file_id: None,
            archive_metadata: archive_metadata(self.volume),
        };
        if policy != OnDelete::Retain {
            match export.create_missing_record(&directory, false).await {
                Ok(file_id) => directory.file_id = Some(file_id),
                // The policy decides if a missing directory is a success.
                Err(ExportError::DirectoryMissing { .. }) => {}
                Err(error) => return Ok(Err(PrepareError::Export(error))),
            }
        }
        Ok(Ok((directory, policy)))
    }

    /// Checks that the connection is to the current address of the backend, not to the address before an edit.
    fn check_connection(&self, directory: &DirectoryPath, snapshot: &ProbeSnapshot) -> Result<(), Refusal> {
        if directory_on(self.volume, &snapshot.object) == Some(directory.to_string().as_str()) {
            return Ok(());
        }
        Err(Refusal {
            reason: Reason::NotProbed,
            message: format!("backend {} has not been probed since it was edited", self.alias),
        })
    }

    /// Reads the parameters of the volume's class from the API server, because they decide what happens to the data.
    /// Returns `None` if the operator does not serve the class anymore.
    async fn read_class(&self) -> Result<Option<Result<ClassParameters, ParameterError>>, WriteError> {
        let Some(name) = class_name(self.volume) else {
            return Ok(None);
        };
        let classes: Api<StorageClass> = Api::all(self.ctx.clients.calls.clone());
        let class = reads::get_opt(&classes, &name)
            .await
            .map_err(WriteError::action("read the volume's StorageClass before its reclaim"))?;
        let settings = &self.ctx.settings;
        let served = class.filter(|class| settings.serves(&class.provisioner));
        Ok(served.map(|class| settings.class_parameters(&class)))
    }
}

/// Wakes the released volumes of a class that was created, changed or deleted.
pub fn class_changed(ctx: &Context, class: &StorageClass) {
    if ctx.settings.served.aliases.is_empty() {
        return;
    }
    let name = class.metadata.name.as_deref();
    for volume in ctx.stores.volumes.state() {
        let depends_on_class = class_name(&volume).as_deref() == name
            && is_released(&volume)
            && alias_backend(&volume, &ctx.settings.served.aliases).is_some();
        if depends_on_class {
            ctx.waiting_volumes.wake(ObjectRef::from_obj(volume.as_ref()));
        }
    }
}

/// Returns the name of the volume's class.
pub fn class_name(volume: &PersistentVolume) -> Option<String> {
    let field = || volume.spec.as_ref()?.storage_class_name.clone();
    let annotated = volume.annotations().get(BETA_STORAGE_CLASS).cloned();
    annotated.or_else(field).filter(|name| !name.is_empty())
}
