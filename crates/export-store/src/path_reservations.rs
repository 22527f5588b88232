//! Path reservations in memory, shared by all backends, to refuse overlaps (data-safety rule 5).
//!
//! Pure: fed by the controllers with volumes and backend roots, by this layer with reservations and archives. The
//! lock inside is never held over an await.

mod index;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::group_reservations::GroupReservations;
use crate::keyed_mutex::KeyedMutex;
use crate::recent_archives::RecentArchives;
use crate::record_index::RecordIndex;
use crate::server_comparison::ServerComparison;
use crate::unanswered_changes::UnansweredByExport;
use index::{Key, PathIndex};
use parking_lot::Mutex;

#[cfg(test)]
mod tests;

/// Root that a path is relative to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PathRoot {
    /// A server, as in `spec.server`, in lower case. The path is absolute.
    Server(String),
    /// An export, by its identity. The path is relative to the export's root.
    Export(String),
}

/// A path that can be reserved. Stored in lower case, because servers may fold case, and cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservedPath(Arc<PathInner>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PathInner {
    realm: Arc<PathRoot>,
    /// The segments, separated by [`BETWEEN`].
    path: Box<str>,
}

/// Separator of the segments of a path: the lowest byte, which no name on an export contains. Therefore, the paths
/// below a path directly follow it in sort order, before `name-x` and `name.x`.
const BETWEEN: char = '\0';

impl ReservedPath {
    fn new(realm: Arc<PathRoot>, path: String) -> Self {
        let path = path.into_boxed_str();
        Self(Arc::new(PathInner { realm, path }))
    }

    /// Creates an absolute path on a server. Drops empty components and `.`, as a server does.
    pub fn on_server(server: &str, path: &str) -> Self {
        Self::new(Arc::new(PathRoot::Server(canonical_server(server))), folded(path))
    }

    /// Creates a path relative to the root of the export with this identity.
    pub fn on_export(export_id: &str, path: &str) -> Self {
        Self::new(Arc::new(PathRoot::Export(export_id.to_owned())), folded(path))
    }

    /// Returns this path extended by a path below it.
    #[must_use]
    pub fn below(&self, path: &str) -> Self {
        let parts = [&*self.0.path, &folded(path)];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Self::new(Arc::clone(&self.0.realm), parts.join(BETWEEN.encode_utf8(&mut [0; 4])))
    }

    /// Returns the identity of the export that the path is on, if that is known.
    fn export(&self) -> Option<&str> {
        match &*self.0.realm {
            PathRoot::Export(id) => Some(id),
            PathRoot::Server(_) => None,
        }
    }
}

/// Returns the spelling by which a server is compared: one per IP address, and lower case for names.
fn canonical_server(server: &str) -> String {
    let bare = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match bare.unwrap_or(server).parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => server.trim_end_matches('.').to_ascii_lowercase(),
    }
}

fn folded(path: &str) -> String {
    let segments = path.split('/').filter(|segment| !matches!(*segment, "" | "."));
    let segments: Vec<String> = segments.map(str::to_lowercase).collect();
    segments.join(BETWEEN.encode_utf8(&mut [0; 4]))
}

impl fmt::Display for ReservedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.path.replace(BETWEEN, "/");
        match &*self.0.realm {
            PathRoot::Server(server) => write!(f, "{server}:/{path}"),
            PathRoot::Export(id) => write!(f, "{path} on export {id}"),
        }
    }
}

/// Holder of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// The volume with this name, of this operator or not.
    Volume(String),
    /// The archive of the volume with this name.
    Archive(String),
    /// The root of the backend with this name, including its former addresses.
    BackendRoot(String),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(name) => write!(f, "the directory of volume {name}"),
            Self::Archive(name) => write!(f, "the archive of volume {name}"),
            Self::BackendRoot(name) => write!(f, "the path of backend {name}"),
        }
    }
}

/// Whether other holders may have the same directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// No other holder may have the directory, or one inside or around it.
    Exclusive,
    /// Other holders that share may have the same directory. None may have one inside or around it.
    Shared,
}

impl Sharing {
    /// Reports whether two holders may have directories with this relation.
    fn permits(self, other: Self, relation: Relation) -> bool {
        (self, other, relation) == (Self::Shared, Self::Shared, Relation::Same)
    }
}

/// Relation of a path to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Relation {
    /// They are the same path.
    Same,
    /// The path lies below the other one.
    Inside,
    /// The path contains the other one.
    Contains,
}

/// A conflict with the reservation of another holder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place} {} {holder}{}", match relation {
    Relation::Same => "is",
    Relation::Inside => "lies inside",
    Relation::Contains => "contains",
}, same_server.as_ref().map_or_else(String::new, |why| format!(": {why}")))]
pub struct Conflict {
    /// The requested path.
    pub place: ReservedPath,
    /// The holder of the conflicting path.
    pub holder: Holder,
    /// Relation of `place` to the holder's path.
    pub relation: Relation,
    /// If the holder's server has another name: why it counts as the same server.
    pub same_server: Option<String>,
}

/// A conflict with a volume or a backend if the two servers, which have different names, are the same machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PossibleConflict {
    /// The conflict.
    pub conflict: Conflict,
    /// The server of the requested path.
    pub server: String,
    /// The server of the holder's path.
    pub holder_server: String,
}

/// Key of a file: the export's identity and the fileid.
pub type FileKey = (String, u64);

/// The reserved paths of all backends. Every call is O(log n).
#[derive(Debug, Default)]
pub struct PathReservations {
    index: Mutex<PathIndex>,
    /// One lock per volume, for the backends that share an export.
    pub(crate) volume_locks: KeyedMutex,
    pub(crate) record_index: RecordIndex,
    pub(crate) recent_archives: RecentArchives,
    pub(crate) unanswered_changes: UnansweredByExport,
    /// The groups of the directories on each export.
    pub groups: GroupReservations,
}

impl PathReservations {
    /// Creates an empty set of reservations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the paths of a holder that shares them with none. Replaces its former paths and a kept reservation.
    pub fn insert(&self, holder: Holder, places: Vec<ReservedPath>, file: Option<FileKey>) {
        self.insert_as(holder, places, file, Sharing::Exclusive);
    }

    /// Sets the paths of a holder. Replaces its former paths and a kept reservation.
    pub fn insert_as(&self, holder: Holder, places: Vec<ReservedPath>, file: Option<FileKey>, sharing: Sharing) {
        let mut index = self.index.lock();
        index.remove(&Key::Committed(holder.clone()));
        index.insert(Key::Known(holder), places, file, sharing);
    }

    /// Removes a holder and its kept reservation.
    pub fn remove(&self, holder: &Holder) {
        let mut index = self.index.lock();
        index.remove(&Key::Known(holder.clone()));
        index.remove(&Key::Committed(holder.clone()));
    }

    /// Removes the kept reservation of a holder. A holder that exists keeps its paths.
    pub(crate) fn release_kept(&self, holder: &Holder) {
        self.index.lock().remove(&Key::Committed(holder.clone()));
    }

    /// Reports whether this holder exists, according to the controllers or, for archives, to this layer.
    pub fn knows(&self, holder: &Holder) -> bool {
        self.index.lock().contains(&Key::Known(holder.clone()))
    }

    /// Calls `visit` with the name of each volume that exists, more than once if it has several paths. The names are not
    /// stored as text.
    pub fn for_each_volume(&self, visit: impl FnMut(&str)) {
        self.index.lock().for_each_volume(visit);
    }

    /// Returns the file of a holder.
    pub fn file_of(&self, holder: &Holder) -> Option<FileKey> {
        self.index.lock().file_of(&Key::Known(holder.clone()))
    }

    /// Reports whether a holder and a backend have paths on servers, and no such path of the holder lies at a root of the
    /// backend or below one. A server may have several names: another name is another server here.
    pub fn is_outside(&self, holder: &Holder, backend: &str) -> bool {
        let root = Key::Known(Holder::BackendRoot(backend.to_owned()));
        self.index.lock().is_outside(&Key::Known(holder.clone()), &root)
    }

    /// Returns a holder with a path that conflicts with `places`, except `except`.
    ///
    /// Roots of `own_backend`, and identical roots of other backends, may contain `places`. With [`Sharing::Shared`], a
    /// holder that shares may have the same paths.
    pub fn overlap(
        &self,
        places: &[ReservedPath],
        except: &Holder,
        sharing: Sharing,
        own_backend: &str,
    ) -> Option<Conflict> {
        self.index.lock().overlap(places, except, sharing, own_backend)
    }

    /// Returns the conflicts with volumes on servers that have another name, except `except`, and with roots of backends
    /// there that `places` contain. One server may have many names and addresses, so the servers have to be compared.
    /// Volumes of this operator are left out if their export is known not to be that of `places`, nor inside or around it.
    fn possible_overlaps(&self, places: &[ReservedPath], except: &Holder, sharing: Sharing) -> Vec<PossibleConflict> {
        self.index.lock().possible_overlaps(places, Some(except), sharing)
    }

    /// Records the identity that a backend's export was confirmed to have, until the backend's roots are set again or
    /// removed.
    pub fn confirm_export(&self, backend: &str, export_id: &str) {
        self.index.lock().confirm_export(backend, export_id);
    }

    /// Returns a conflict with a volume or a backend whose server has another name, unless the two are known to be different machines.
    pub(crate) async fn conflict_on_other_server(
        &self,
        places: &[ReservedPath],
        except: &Holder,
        sharing: Sharing,
        servers: &dyn ServerComparison,
    ) -> Option<Conflict> {
        first_same_server(self.possible_overlaps(places, except, sharing), servers).await
    }

    /// Returns the volume or archive whose path is one of `places` or contains it, whatever the name of its server is. If
    /// the server has another name, also returns why it counts as the same server.
    pub async fn enclosing_holder(
        &self,
        places: &[ReservedPath],
        servers: &dyn ServerComparison,
    ) -> Option<(Holder, Option<String>)> {
        if let Some(holder) = self.index.lock().enclosing_holder(places) {
            return Some((holder, None));
        }
        let mut possible = self.index.lock().possible_overlaps(places, None, Sharing::Exclusive);
        possible.retain(|PossibleConflict { conflict, .. }| {
            conflict.relation != Relation::Contains && !matches!(conflict.holder, Holder::BackendRoot(_))
        });
        let conflict = first_same_server(possible, servers).await;
        conflict.map(|conflict| (conflict.holder, conflict.same_server))
    }

    /// Reports whether a directory is needed although it may be empty: it belongs to another holder than `own`, a directory
    /// is being created in it, or it contains the path of a backend, whatever the name of the server is.
    pub(crate) async fn is_needed(
        &self,
        places: &[ReservedPath],
        own: &Holder,
        servers: &dyn ServerComparison,
    ) -> bool {
        if self.index.lock().is_needed(places, own) {
            return true;
        }
        let mut possible = self
            .index
            .lock()
            .possible_overlaps(places, Some(own), Sharing::Exclusive);
        possible.retain(|PossibleConflict { conflict, .. }| {
            conflict.relation != Relation::Contains || matches!(conflict.holder, Holder::BackendRoot(_))
        });
        first_same_server(possible, servers).await.is_some()
    }

    /// Returns the holders of a fileid. Almost always, it has at most one, unless they share it.
    pub fn holders_of(&self, file: &FileKey) -> Vec<Holder> {
        self.index.lock().holders_of(file, Sharing::Exclusive)
    }

    /// Returns the holders of a fileid that stand in the way of another one.
    pub(crate) fn holders_against(&self, file: &FileKey, sharing: Sharing) -> Vec<Holder> {
        self.index.lock().holders_of(file, sharing)
    }

    /// Reserves `places` for `holder` if there is no conflict, in one step. The same holder can reserve paths several
    /// times.
    pub fn reserve(
        self: &Arc<Self>,
        holder: Holder,
        places: Vec<ReservedPath>,
        sharing: Sharing,
        own_backend: &str,
    ) -> Result<Reservation, Conflict> {
        let mut index = self.index.lock();
        if let Some(conflict) = index.overlap(&places, &holder, sharing, own_backend) {
            return Err(conflict);
        }
        let serial = index.next_serial();
        index.insert(Key::Reserved(holder.clone(), serial), places.clone(), None, sharing);
        drop(index);
        Ok(Reservation {
            reservations: Arc::clone(self),
            holder,
            serial,
            places,
            sharing,
        })
    }
}

/// Returns the first conflict whose servers are not known to be different machines.
async fn first_same_server(possible: Vec<PossibleConflict>, servers: &dyn ServerComparison) -> Option<Conflict> {
    for possible in possible {
        let same_server = servers.why_same(&possible.server, &possible.holder_server).await;
        if same_server.is_some() {
            return Some(Conflict {
                same_server,
                ..possible.conflict
            });
        }
    }
    None
}

/// Reserved paths. They are released when this is dropped, unless [`Reservation::keep`] was called.
#[derive(Debug)]
#[must_use = "the paths are released when this is dropped"]
pub struct Reservation {
    reservations: Arc<PathReservations>,
    holder: Holder,
    serial: u64,
    places: Vec<ReservedPath>,
    sharing: Sharing,
}

impl Reservation {
    /// Keeps the reservation until the holder is inserted or removed.
    pub fn keep(self, file: Option<FileKey>) {
        let mut index = self.reservations.index.lock();
        // An existing holder has its actual paths already, which take precedence.
        if !index.contains(&Key::Known(self.holder.clone())) {
            let key = Key::Committed(self.holder.clone());
            index.insert(key, self.places.clone(), file, self.sharing);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reservations
            .index
            .lock()
            .remove(&Key::Reserved(self.holder.clone(), self.serial));
    }
}
