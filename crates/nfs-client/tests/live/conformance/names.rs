//! Names at the limits of file systems.

use nfs_client::{Name, NameError, RemoveOutcome};

use super::{Bench, Outcome, listed, mode, refused, yes};

pub async fn not_utf8(bench: Bench) -> Outcome {
    let name = Name::new(&b"caf\xe9\xff\x01 \n"[..]).unwrap();
    roundtrip(bench, name).await
}

pub async fn of_255_bytes(bench: Bench) -> Outcome {
    roundtrip(bench, Name::new(vec![b'n'; 255]).unwrap()).await
}

/// Creates, lists, finds and removes a name, unless it is refused.
async fn roundtrip(bench: Bench, name: Name) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let created = match export.make_directory(&folder, &name, mode(0o755)).await {
        Ok(created) => created.node,
        Err(error) => {
            assert!(!error.outcome_unknown(), "{error}");
            assert_eq!(listed(&export, &folder).await, []);
            return refused(&error);
        }
    };
    assert_eq!(listed(&export, &folder).await, std::slice::from_ref(&name));
    let found = export.lookup(&folder, &name).await.unwrap().unwrap();
    assert_eq!(found.handle, created.handle);
    let removed = export.remove_batch(&folder, &[name]).await.unwrap();
    assert_eq!(removed, [RemoveOutcome::Removed]);
    assert_eq!(listed(&export, &folder).await, []);
    yes()
}

/// It never reaches the server.
pub async fn of_256_bytes(_bench: Bench) -> Outcome {
    let refused = Name::new(vec![b'n'; 256]).unwrap_err();
    assert_eq!(refused, NameError::TooLong);
    Some("TooLong".to_owned())
}
