//! MOUNT against a scripted server, and what its refusals mean.

use super::constants::{MOUNT_PROGRAM, nfs};
use super::scripted::{Answer, Server, found, handle, on, status, within};
use crate::xdr::Encoder;
use crate::{Name, NfsError, Status};

#[tokio::test]
async fn refusals_of_the_rpc_layer_are_told_apart() {
    let weak = Server::start(|_, request| match request.program {
        MOUNT_PROGRAM => {
            let mut denied = Encoder::new();
            denied.u32(1).u32(5);
            Answer::Denied(denied)
        }
        _ => Answer::Usual,
    })
    .await;
    let refused = weak.client().await.root(within(60)).await.unwrap_err();
    assert!(
        matches!(
            &refused,
            NfsError::AccessDenied {
                reserved_port: false,
                ..
            }
        ),
        "{refused}"
    );
    let newer = Server::start(|_, _| {
        let mut mismatch = Encoder::new();
        mismatch.u32(2).u32(4).u32(4);
        Answer::Unavailable(mismatch)
    })
    .await;
    let refused = newer.connect().await.unwrap_err();
    assert!(
        matches!(&refused, NfsError::ProtocolNotSupported { requested, .. } if requested == "3"),
        "{refused}"
    );
}

#[tokio::test]
async fn an_export_without_auth_sys_is_refused() {
    let server = Server::start(|_, request| match (request.program, request.procedure) {
        (MOUNT_PROGRAM, 1) => {
            let mut results = Encoder::new();
            results.u32(0).opaque(b"root").u32(1).u32(390_003);
            Answer::Results(results)
        }
        _ => Answer::Usual,
    })
    .await;
    let refused = server.client().await.root(within(60)).await.unwrap_err();
    assert!(matches!(&refused, NfsError::SecurityFlavor { .. }), "{refused}");
}

/// MNT's status and the server's list of exports, to what is told.
async fn mount_refused(code: u32, exports: &'static [&'static str]) -> NfsError {
    let server = Server::start(move |_, request| {
        let mut results = Encoder::new();
        match (request.program, request.procedure) {
            (MOUNT_PROGRAM, 1) => results.u32(code),
            (MOUNT_PROGRAM, _) => {
                for export in exports {
                    results.boolean(true).opaque(export.as_bytes()).boolean(false);
                }
                results.boolean(false)
            }
            _ => return Answer::Usual,
        };
        Answer::Results(results)
    })
    .await;
    server.client().await.root(within(60)).await.unwrap_err()
}

#[tokio::test]
async fn what_mount_refuses_is_explained_by_the_list_of_exports() {
    let missing = mount_refused(2, &["/other"]).await;
    assert!(matches!(missing, NfsError::ExportNotFound { .. }), "{missing}");
    let denied = mount_refused(13, &["/export/"]).await;
    assert!(matches!(denied, NfsError::AccessDenied { .. }), "{denied}");
    // From an ordinary port, that may be the reason as well.
    let denied = mount_refused(13, &["/other"]).await;
    assert!(
        matches!(
            denied,
            NfsError::AccessDenied {
                reserved_port: false,
                ..
            }
        ),
        "{denied}"
    );
    let file = mount_refused(20, &[]).await;
    assert!(matches!(file, NfsError::NotADirectory { .. }), "{file}");
    let fault = mount_refused(10_006, &[]).await;
    assert_eq!(fault.status(), Some(Status::Io));
}

/// A server that mounts `/` alone, with an object of that kind at `/export`.
async fn below_the_export(kind: u32) -> NfsError {
    let server = Server::start(move |_, request| {
        let mut results = Encoder::new();
        match (request.program, request.procedure) {
            (MOUNT_PROGRAM, 1) if request.arguments.clone().opaque("path", 99).unwrap().len() > 1 => results.u32(13),
            (MOUNT_PROGRAM, 5) => results.boolean(true).opaque(b"/").boolean(false).boolean(false),
            (_, nfs::LOOKUP) => return found(kind, 5),
            _ => return Answer::Usual,
        };
        Answer::Results(results)
    })
    .await;
    server.client().await.root(within(60)).await.unwrap_err()
}

#[tokio::test]
async fn what_lies_below_an_export_and_is_refused_is_looked_at_from_the_export() {
    let refused = below_the_export(2).await;
    assert!(
        matches!(&refused, NfsError::SubdirectoryMountRefused { path, export } if path == "/export" && export == "/"),
        "{refused}"
    );
    let link = below_the_export(5).await;
    assert!(
        matches!(&link, NfsError::SymlinkInPath { component, .. } if component == "export"),
        "{link}"
    );
    let file = below_the_export(1).await;
    assert!(matches!(file, NfsError::NotADirectory { .. }), "{file}");
}

#[tokio::test]
async fn a_stale_root_is_requested_again_and_its_limits_are_kept() {
    let server = Server::start(|before, request| match on(nfs::GETATTR, request) {
        true if before == 1 => status(70),
        _ => Answer::Usual,
    })
    .await;
    let client = server.client().await;
    client.root(within(60)).await.unwrap();
    client.root(within(60)).await.unwrap();
    // Once for both calls, and once more after STALE.
    assert_eq!(server.count(1001), 2);
    assert_eq!(server.count(nfs::FSINFO), 1);
    // PATHCONF said 143 bytes.
    let long = Name::new(vec![b'n'; 144]).unwrap();
    let refused = client
        .create_directory(&handle("root"), &long, Default::default(), within(60))
        .await;
    assert_eq!(refused.unwrap_err().status(), Some(Status::NameTooLong));
    assert_eq!(server.count(nfs::MKDIR), 0);
}
