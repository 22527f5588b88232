//! Nodes: they mount the volumes of claims, and their pods write files.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api_server::ApiServer;
use crate::chance::Chance;
use crate::nfs_server::file_system::{Caller, Object};
use crate::nfs_server::node::Mount;
use crate::nfs_server::status::NfsStat;
use crate::objects::{is_deleting, name, text, uid};
use crate::sites::Sites;
use crate::trace::Trace;

/// A file that a pod wrote: the claim and the number of the file. The content of the file says the same.
pub type DataFile = (String, u64);

/// What the content of every file that a pod writes begins with.
pub const TAG: &str = "data of ";

/// Returns the content of a file.
pub fn content((claim, number): &DataFile) -> String {
    format!("{TAG}{claim} {number}")
}

/// Returns the file that has a content.
pub fn parse(content: &[u8]) -> Option<DataFile> {
    let (claim, number) = std::str::from_utf8(content).ok()?.strip_prefix(TAG)?.split_once(' ')?;
    Some((claim.to_owned(), number.parse().ok()?))
}

/// A file that a pod wrote, and where.
#[derive(Debug)]
pub struct Written {
    /// The file.
    pub file: DataFile,
    /// Index of the export.
    pub site: usize,
    /// The directory of the volume.
    pub directory: Object,
    /// The file on the disk.
    pub object: Object,
}

/// The nodes.
#[derive(Debug)]
pub struct Nodes {
    api: ApiServer,
    sites: Sites,
    chance: Chance,
    trace: Trace,
    /// Mounted volumes, by the UID of their claim.
    mounts: BTreeMap<String, (usize, Mount)>,
    written: u64,
}

impl Nodes {
    /// Returns nodes that mount nothing yet.
    pub fn new(seed: u64, api: ApiServer, sites: Sites, trace: Trace) -> Self {
        Self {
            api,
            sites,
            chance: Chance::new(seed, "nodes"),
            trace,
            mounts: BTreeMap::new(),
            written: 0,
        }
    }

    /// Lets a pod write a file into the volume of a claim that is bound. Returns the file. Pods of a claim whose UID is
    /// one that `waits` are not started.
    ///
    /// # Errors
    /// The volume cannot be mounted, or refuses the file: the claim was reported as bound too early, or lost its directory.
    pub fn write(&mut self, waits: impl Fn(&str) -> bool) -> Result<Option<Written>, String> {
        let mut claims = self.api.all("persistentvolumeclaims");
        claims.retain(|claim| !is_deleting(claim) && text(claim, "/status/phase") == "Bound" && !waits(uid(claim)));
        let Some(claim) = self.chance.choose(&claims) else {
            return Ok(None);
        };
        let claim_uid = uid(claim).to_owned();
        let (site, mount) = self.mount(claim)?;
        self.written += 1;
        let file = (claim_uid, self.written);
        let object = match mount.write(&format!("file-{}", self.written), content(&file).as_bytes()) {
            Ok(object) => object,
            // What any disk may be. The pod reports it.
            Err(NfsStat::NOSPC | NfsStat::DQUOT) => return Ok(None),
            Err(status) => {
                return Err(format!(
                    "claim {} is bound, and its volume refuses a file: {status:?}",
                    name(claim)
                ));
            }
        };
        self.trace.record(
            "node",
            format_args!("writes file-{} of claim {}", self.written, name(claim)),
        );
        Ok(Some(Written {
            file,
            site,
            directory: mount.root(),
            object,
        }))
    }

    /// Returns the mounted volume of a claim.
    fn mount(&mut self, claim: &Value) -> Result<(usize, Mount), String> {
        if let Some(mount) = self.mounts.get(uid(claim)) {
            return Ok(mount.clone());
        }
        let volumes = self.api.all("persistentvolumes");
        let volume = volumes
            .iter()
            .find(|volume| name(volume) == text(claim, "/spec/volumeName"));
        let path = volume.map_or("", |volume| text(volume, "/spec/nfs/path"));
        let site = volume.and_then(|volume| self.sites.of_volume(volume));
        let site = site.and_then(|(index, _)| Some((index, self.sites.get(index)?)));
        let Some((index, site)) = site else {
            return Err(format!("claim {} is bound to a volume at {path:?}", name(claim)));
        };
        let caller = Caller {
            uid: 1000,
            gid: 1000,
            groups: Vec::new(),
        };
        let mount = Mount::new(&site.server, "node-1", path, caller).map_err(|status| {
            format!(
                "claim {} is bound, and {path:?} cannot be mounted: {status:?}",
                name(claim)
            )
        })?;
        self.mounts.insert(uid(claim).to_owned(), (index, mount.clone()));
        Ok((index, mount))
    }
}
