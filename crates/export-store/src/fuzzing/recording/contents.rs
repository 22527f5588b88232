//! Calls and replies of a copy.

use bytes::Bytes;

use super::Corpus;
use nfs_client::{Client, FileHandle, Name, NfsError};

/// Operation numbers (RFC 7862 section 15, RFC 8276 section 8.4).
const COPY: u32 = 60;
const OFFLOAD_STATUS: u32 = 67;
const GETXATTR: u32 = 72;
const LISTXATTRS: u32 = 74;
/// The item `abc`, preceded by its length.
const ABC: [u32; 2] = [3, 0x6162_6300];

/// Performs all operations that a copy uses. Replies that refuse an operation, because the version or the server does
/// not support it, are recorded, too.
pub(super) async fn record_copy_operations(export: &Client, directory: &FileHandle) -> Result<(), NfsError> {
    let name = |text: &'static str| Name::new(Bytes::from_static(text.as_bytes()));
    let (Ok(one), Ok(two), Ok(link)) = (name("one"), name("two"), name("link")) else {
        unreachable!("these are names")
    };
    let from = export.create_file(directory, &one, b"begin", 0o600).await?.handle;
    let to = export.create_file(directory, &two, b"", 0o600).await?.handle;
    export
        .write(&from, 1 << 20, &Bytes::from_static(b"after a hole"))
        .await?;
    export.commit(&from).await?;
    export.read(&from, 0, 16).await?;
    export.read(&from, 1 << 20, 100).await?;
    export.lookup_and_read(directory, &one, 64).await?;
    export.full_attributes(&from).await?;
    let made = export.create_symlink(directory, &link, b"../elsewhere").await?;
    export.read_link(&made.handle).await?;
    export.lookup_and_read(directory, &link, 64).await?;
    drop(export.seek_data(&from, 0).await);
    drop(export.seek_data(&from, 4096).await);
    drop(export.clone_file(&from, &to).await);
    drop(export.copy((&from, 0), (&to, 0), 5).await);
    drop(export.set_xattr(&from, b"colour", b"green").await);
    drop(export.list_xattrs(&from).await);
    drop(export.get_xattr(&from, b"colour").await);
    drop(export.get_xattr(&from, b"absent").await);
    Ok(())
}

/// Replies that nfs-ganesha never sends: synchronous and asynchronous copies, the status of an asynchronous copy, and
/// user attributes. Written in words, as specified in RFC 7862 sections 15.2 and 15.9 and RFC 8276 section 8.4.
pub(super) fn add_replies_that_ganesha_never_sends(corpus: &mut Corpus) {
    // wr_callback_id<1>, five bytes, FILE_SYNC4, the verifier, consecutive, synchronous.
    let at_once: &[u32] = &[0, 0, 5, 2, 7, 7, 1, 1];
    let in_background: &[u32] = &[1, 1, 3, 3, 3, 0, 5, 2, 7, 7, 1, 0];
    // Five bytes, osr_complete<1>.
    let (under_way, ended): (&[u32], &[u32]) = (&[0, 5, 0], &[0, 5, 1, 0]);
    // A cookie, one name, the end.
    let names = [0, 9, 1, ABC[0], ABC[1], 1];
    for (shape, operation, results) in [
        ("copied", COPY, at_once),
        ("copying", COPY, in_background),
        ("under-way", OFFLOAD_STATUS, under_way),
        ("ended", OFFLOAD_STATUS, ended),
        ("attribute", GETXATTR, &ABC),
        ("attributes", LISTXATTRS, &names),
    ] {
        // XID, REPLY, accepted, no verifier, SUCCESS (RFC 5531 section 9); status, tag and count of the compound;
        // number and status of the operation.
        let head = [1, 1, 0, 0, 0, 0, 0, 0, 1, operation, 0];
        let record: Vec<u8> = head.iter().chain(results).flat_map(|word| word.to_be_bytes()).collect();
        corpus.add("v4-replies", format!("written-{shape}"), &record);
    }
}
