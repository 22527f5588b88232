//! File attributes on the wire (RFC 8881 sections 3.3.7 and 5).

use bytes::Bytes;
use nfs_client::Time;
use nfs_client::wire::v4::attribute;
use nfs_client::wire::{Decoder, Encoder, XdrError};

use crate::nfs_server::exports::{Node, Place};
use crate::nfs_server::file_system::{AttributeChanges, TimeChange};
use crate::nfs_server::state::State;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// Maximum number of words in a bitmap.
const MAX_WORDS: usize = 8;
/// Maximum length of an owner.
const MAX_OWNER: usize = 1024;
/// SET_TO_CLIENT_TIME4.
const CLIENT_TIME: u32 = 1;

/// The attributes that the server knows.
const SUPPORTED: &[u32] = &[
    SUPPORTED_ATTRS,
    attribute::TYPE,
    attribute::CHANGE,
    attribute::SIZE,
    attribute::FSID,
    attribute::UNIQUE_HANDLES,
    attribute::LEASE_TIME,
    attribute::RDATTR_ERROR,
    attribute::FILEID,
    attribute::FILES_FREE,
    attribute::FILES_TOTAL,
    attribute::MAXREAD,
    attribute::MAXWRITE,
    attribute::MODE,
    attribute::NUMLINKS,
    attribute::OWNER,
    attribute::OWNER_GROUP,
    attribute::SPACE_AVAIL,
    attribute::SPACE_TOTAL,
    attribute::SPACE_USED,
    attribute::TIME_ACCESS,
    attribute::TIME_METADATA,
    attribute::TIME_MODIFY,
    attribute::MOUNTED_ON_FILEID,
];

const SUPPORTED_ATTRS: u32 = 0;

/// Decodes a bitmap into attribute numbers, ascending.
pub fn read_bitmap(arguments: &mut Decoder) -> Result<Vec<u32>, XdrError> {
    let length = arguments.count("bitmap", 4)?;
    if length > MAX_WORDS {
        return Err(XdrError::TooLong {
            what: "bitmap",
            length,
            limit: MAX_WORDS,
        });
    }
    let mut attributes = Vec::new();
    for base in (0..length).filter_map(|word| u32::try_from(word * 32).ok()) {
        let word = arguments.u32("bitmap")?;
        attributes.extend((0..32).filter(|bit| word & (1 << bit) != 0).map(|bit| base + bit));
    }
    Ok(attributes)
}

/// Encodes a bitmap.
pub fn write_bitmap(message: &mut Encoder, attributes: &[u32]) {
    let mut words = [0u32; 3];
    for attribute in attributes {
        if let Some(word) = words.get_mut((attribute / 32) as usize) {
            *word |= 1 << (attribute % 32);
        }
    }
    let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    message.u32(u32::try_from(used).unwrap_or(0));
    for word in words.iter().take(used) {
        message.u32(*word);
    }
}

/// `fattr4` as it was sent, for VERIFY and NVERIFY, which compare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawAttributes {
    /// Attribute numbers.
    pub attributes: Vec<u32>,
    /// Values.
    pub values: Bytes,
}

/// Decodes `fattr4` without its values.
pub fn read_raw(arguments: &mut Decoder) -> Result<RawAttributes, XdrError> {
    let attributes = read_bitmap(arguments)?;
    let left = arguments.left();
    let values = arguments.opaque("attribute values", left)?;
    Ok(RawAttributes { attributes, values })
}

/// Decodes `fattr4` for SETATTR, CREATE and OPEN. The inner error is the status of the operation.
pub fn read_changes(arguments: &mut Decoder) -> Result<NfsResult<AttributeChanges>, XdrError> {
    let RawAttributes { attributes, values } = read_raw(arguments)?;
    let mut values = Decoder::new(values);
    let mut changes = AttributeChanges::default();
    for number in attributes {
        match number {
            attribute::SIZE => changes.size = Some(values.u64("size")?),
            attribute::MODE => changes.mode = Some(values.u32("mode")?),
            attribute::OWNER | attribute::OWNER_GROUP => {
                let owner = values.opaque("owner", MAX_OWNER)?;
                let Some(id) = std::str::from_utf8(&owner).ok().and_then(|owner| owner.parse().ok()) else {
                    return Ok(Err(NfsStat::BADOWNER));
                };
                match number {
                    attribute::OWNER => changes.uid = Some(id),
                    _ => changes.gid = Some(id),
                }
            }
            attribute::TIME_ACCESS_SET => changes.accessed = Some(read_time_change(&mut values)?),
            attribute::TIME_MODIFY_SET => changes.modified = Some(read_time_change(&mut values)?),
            _ => return Ok(Err(NfsStat::ATTRNOTSUPP)),
        }
    }
    Ok(Ok(changes))
}

fn read_time_change(values: &mut Decoder) -> Result<TimeChange, XdrError> {
    if values.u32("time")? != CLIENT_TIME {
        return Ok(TimeChange::Now);
    }
    Ok(TimeChange::To(Time {
        seconds: values.u64("time")?.cast_signed(),
        nanos: values.u32("time")?,
    }))
}

/// Returns the numbers of the attributes that a change set.
pub fn changed(changes: &AttributeChanges) -> Vec<u32> {
    let set = [
        (changes.size.is_some(), attribute::SIZE),
        (changes.mode.is_some(), attribute::MODE),
        (changes.uid.is_some(), attribute::OWNER),
        (changes.gid.is_some(), attribute::OWNER_GROUP),
        (changes.accessed.is_some(), attribute::TIME_ACCESS_SET),
        (changes.modified.is_some(), attribute::TIME_MODIFY_SET),
    ];
    set.iter()
        .filter(|(is_set, _)| *is_set)
        .map(|(_, number)| *number)
        .collect()
}

/// What GETATTR reports of an object.
struct Reported {
    kind: u32,
    change: u64,
    size: u64,
    fsid: (u64, u64),
    fileid: u64,
    mounted_on: u64,
    mode: u32,
    links: u32,
    owner: (u32, u32),
    used: u64,
    times: [Time; 3],
    /// Free and all inodes, free and all bytes.
    statistics: [u64; 4],
}

fn reported(state: &State, node: Node, covered: Option<u64>) -> NfsResult<Reported> {
    if let Node::Pseudo(number) = node {
        // Numbers within a file system begin with 1.
        let fileid = u64::from(number) + 1;
        let time = Time {
            seconds: state.options.epoch,
            nanos: 0,
        };
        return Ok(Reported {
            kind: 2,
            change: state.namespace.exports.len() as u64,
            size: 4096,
            fsid: (0, 0),
            fileid,
            mounted_on: fileid,
            mode: 0o555,
            links: 2,
            owner: (0, 0),
            used: 0,
            times: [time; 3],
            statistics: [0; 4],
        });
    }
    let Place { disk, ino } = state.namespace.place(node)?;
    let disk = state.namespace.disk(&disk)?;
    let inode = disk.inode(ino)?;
    let statistics = disk.statistics();
    Ok(Reported {
        kind: inode.kind.number(),
        change: inode.change,
        size: inode.size(),
        fsid: (disk.options().fsid.major, disk.options().fsid.minor),
        fileid: ino,
        mounted_on: covered.unwrap_or(ino),
        mode: inode.mode,
        links: inode.links(),
        owner: (inode.uid, inode.gid),
        used: inode.used(),
        times: [inode.accessed, inode.changed, inode.modified],
        statistics: [
            statistics.inodes_free,
            statistics.inodes,
            statistics.available,
            statistics.total,
        ],
    })
}

/// Encodes `fattr4` of an object: those of the requested attributes that the server knows. `covered`: the fileid of the
/// directory on which the object's file system is mounted.
pub fn write(
    state: &State,
    node: Node,
    covered: Option<u64>,
    requested: &[u32],
    message: &mut Encoder,
) -> NfsResult<()> {
    let object = reported(state, node, covered)?;
    let known: Vec<u32> = requested
        .iter()
        .copied()
        .filter(|number| SUPPORTED.contains(number))
        .collect();
    let mut values = Encoder::new();
    for number in &known {
        write_one(state, &object, *number, &mut values);
    }
    write_bitmap(message, &known);
    message.opaque(values.as_bytes());
    Ok(())
}

fn write_one(state: &State, object: &Reported, number: u32, values: &mut Encoder) {
    let [files_free, files_total, space_available, space_total] = object.statistics;
    let [accessed, changed, modified] = object.times;
    let mut time = |time: Time| {
        values.u64(time.seconds.cast_unsigned()).u32(time.nanos);
    };
    match number {
        attribute::TIME_ACCESS => return time(accessed),
        attribute::TIME_METADATA => return time(changed),
        attribute::TIME_MODIFY => return time(modified),
        _ => {}
    }
    match number {
        SUPPORTED_ATTRS => {
            write_bitmap(values, SUPPORTED);
            values
        }
        attribute::TYPE => values.u32(object.kind),
        attribute::CHANGE => values.u64(object.change),
        attribute::SIZE => values.u64(object.size),
        attribute::FSID => values.u64(object.fsid.0).u64(object.fsid.1),
        attribute::UNIQUE_HANDLES => values.boolean(true),
        attribute::LEASE_TIME => values.u32(u32::try_from(state.options.lease.as_secs()).unwrap_or(u32::MAX)),
        attribute::RDATTR_ERROR => values.u32(0),
        attribute::FILEID => values.u64(object.fileid),
        attribute::FILES_FREE => values.u64(files_free),
        attribute::FILES_TOTAL => values.u64(files_total),
        attribute::MAXREAD | attribute::MAXWRITE => values.u64(state.options.max_transfer.into()),
        attribute::MODE => values.u32(object.mode),
        attribute::NUMLINKS => values.u32(object.links),
        attribute::OWNER => values.opaque(object.owner.0.to_string().as_bytes()),
        attribute::OWNER_GROUP => values.opaque(object.owner.1.to_string().as_bytes()),
        attribute::SPACE_AVAIL => values.u64(space_available),
        attribute::SPACE_TOTAL => values.u64(space_total),
        attribute::SPACE_USED => values.u64(object.used),
        // MOUNTED_ON_FILEID, the last of those that are supported.
        _ => values.u64(object.mounted_on),
    };
}

/// Compares attributes as VERIFY does: SAME, or NOT_SAME.
pub fn is_same(state: &State, node: Node, expected: &RawAttributes) -> NfsResult<bool> {
    if expected.attributes.iter().any(|number| !SUPPORTED.contains(number)) {
        return Err(NfsStat::ATTRNOTSUPP);
    }
    let mut found = Encoder::new();
    write(state, node, None, &expected.attributes, &mut found)?;
    let mut wanted = Encoder::new();
    write_bitmap(&mut wanted, &expected.attributes);
    wanted.opaque(&expected.values);
    Ok(found.as_bytes() == wanted.as_bytes())
}
