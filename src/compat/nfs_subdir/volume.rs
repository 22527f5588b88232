//! Volumes that nfs-subdir-external-provisioner made under a name that is an alias now: found on the export and
//! recorded there before anything is touched (design 6.8).

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::api::NfsBackend;
use crate::api::backend::OnDelete;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::BETA_STORAGE_CLASS;
use crate::api::parameters::{ClassParameters, ParameterError};
use crate::compat::nfs_subdir::location as inherited;
use crate::controllers::claim::class_parameters;
use crate::controllers::volume::reclaim::{Refused, archive_metadata, claim_of};
use crate::decide::policy::{Refusal, is_released};
use crate::runtime::writes::WriteError;
use crate::state::backends::ProbeSnapshot;
use crate::state::context::Context;
use export_store::naming::DirectoryPath;
use export_store::{ExportError, ExportStore, ReclaimRequest};

/// One of these volumes, and the backend of its alias.
pub(crate) struct Inherited<'a> {
    ctx: &'a Context,
    volume: &'a PersistentVolume,
    alias: &'a str,
}

impl<'a> Inherited<'a> {
    pub(crate) fn of(ctx: &'a Context, volume: &'a PersistentVolume, alias: &'a str) -> Self {
        Self { ctx, volume, alias }
    }

    /// Its directory, if its address leads to just one, on the backend of its alias.
    pub(crate) fn locate(&self) -> Result<DirectoryPath, Refusal> {
        let backends = self.ctx.stores.backends.state();
        let backends: Vec<&NfsBackend> = backends.iter().map(AsRef::as_ref).collect();
        inherited::locate(self.volume, self.alias, &backends)
    }

    /// What is to be reclaimed, recorded on the export, and how.
    pub(crate) async fn prepare(
        &self,
        known: &ProbeSnapshot,
        export: &ExportStore,
    ) -> Result<Result<(ReclaimRequest, OnDelete), Refused>, WriteError> {
        let located = self.locate().and_then(|directory| {
            self.check_connection(&directory, known)?;
            Ok(directory)
        });
        let class = self.class().await?;
        let directory = match located {
            Ok(directory) => directory,
            Err(stop) => return Ok(Err(refused(stop))),
        };
        let policy = match inherited::policy(class) {
            Ok(policy) => policy,
            Err(stop) => return Ok(Err(refused(stop))),
        };
        let mut request = ReclaimRequest {
            claim: claim_of(self.volume),
            volume: self.volume.name_any(),
            directory,
            file_id: None,
            archive_metadata: archive_metadata(self.volume, known),
        };
        if policy != OnDelete::Retain {
            match export.register(&request, false).await {
                Ok(file_id) => request.file_id = Some(file_id),
                // Whether that is success is for the policy to say.
                Err(ExportError::DirectoryMissing { .. }) => {}
                Err(error) => return Ok(Err(Refused::Export(error))),
            }
        }
        Ok(Ok((request, policy)))
    }

    /// The connection must be to where the backend says it is now, not to where it was before an edit.
    fn check_connection(&self, directory: &DirectoryPath, known: &ProbeSnapshot) -> Result<(), Refusal> {
        if inherited::directory_on(self.volume, &known.object) == Some(directory.to_string().as_str()) {
            return Ok(());
        }
        Err(Refusal {
            reason: Reason::NotProbed,
            message: format!("backend {} is not probed yet since it was edited", self.alias),
        })
    }

    /// What the volume's class says now: read live, for it decides about data. One that is not ours any more is none.
    async fn class(&self) -> Result<Option<Result<ClassParameters, ParameterError>>, WriteError> {
        let Some(name) = class_name(self.volume) else {
            return Ok(None);
        };
        let classes: Api<StorageClass> = Api::all(self.ctx.clients.calls.clone());
        let class = classes
            .get_opt(&name)
            .await
            .map_err(WriteError::of("read the volume's StorageClass before its reclaim"))?;
        let settings = &self.ctx.settings;
        let ours = class.filter(|class| settings.serves(&class.provisioner));
        Ok(ours.map(|class| class_parameters(&class, settings)))
    }
}

/// A class was made, or is gone: its volumes that wait for what it says are looked at again.
pub fn class_changed(ctx: &Context, class: &StorageClass) {
    if ctx.settings.aliases.is_empty() {
        return;
    }
    let name = class.metadata.name.as_deref();
    for volume in ctx.stores.volumes.state() {
        let asks = class_name(&volume).as_deref() == name
            && is_released(&volume)
            && inherited::alias_backend(&volume, &ctx.settings.aliases).is_some();
        if asks {
            ctx.waiting_volumes.wake(ObjectRef::from_obj(volume.as_ref()));
        }
    }
}

fn class_name(volume: &PersistentVolume) -> Option<String> {
    let field = || volume.spec.as_ref()?.storage_class_name.clone();
    let annotated = volume.annotations().get(BETA_STORAGE_CLASS).cloned();
    annotated.or_else(field).filter(|name| !name.is_empty())
}

fn refused(stop: Refusal) -> Refused {
    Refused::Verdict(PlannedCondition::fails(stop.reason, stop.message))
}
