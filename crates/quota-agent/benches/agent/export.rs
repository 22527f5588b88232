//! An export with orders, in a folder of this machine.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use export_store::RecordsKey;
use export_store::quota::{KeyFile, LimitState, Order, QuotaDirectory, QuotaSeal, Report};
use quota_agent::{ProjectRange, Settings};

use crate::Failure;

const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";
const MIB: u64 = 1 << 20;

/// Creates an export that an operator uses, with orders for empty directories.
pub fn create(root: &Path, volumes: usize) -> Result<(), Failure> {
    let cluster = root.join(".nfs-operator").join(CLUSTER);
    fs::create_dir_all(cluster.join("records"))?;
    for closed in [root.join(".nfs-operator"), cluster] {
        fs::set_permissions(closed, fs::Permissions::from_mode(0o700))?;
    }
    fs::write(
        root.join(".nfs-operator/identity"),
        r#"{"version":1,"id":"export","rootFileID":2}"#,
    )?;
    let keys = root.join("keys");
    fs::write(&keys, KeyFile::lines(CLUSTER, &key()))?;
    fs::set_permissions(keys, fs::Permissions::from_mode(0o600))?;
    let orders = quota_folder(root).join("orders");
    fs::create_dir_all(&orders)?;
    for closed in [quota_folder(root), orders] {
        fs::set_permissions(closed, fs::Permissions::from_mode(0o700))?;
    }
    for number in 0..volumes {
        fs::create_dir(root.join(directory(number)))?;
        place(root, number, 1)?;
    }
    Ok(())
}

/// Returns the settings of an agent for the export.
pub fn settings(root: &Path) -> Settings {
    Settings {
        exports: vec![root.to_owned()],
        key_file: root.join("keys"),
        projects: ProjectRange::default(),
        files_per_second: 1000,
    }
}

fn key() -> RecordsKey {
    RecordsKey::new(&[7; 32])
}

fn seal() -> QuotaSeal {
    QuotaSeal::new(Some(key().quota_key()), CLUSTER, "export")
}

fn quota_folder(root: &Path) -> PathBuf {
    root.join(".nfs-operator").join(CLUSTER).join("quota")
}

/// Returns the name of a volume's directory, as long as that of a claim.
fn directory(number: usize) -> String {
    format!("namespace-claim-{number:05}-pvc-00000000-0000-4000-8000-{number:012}")
}

fn volume(number: usize) -> String {
    format!("pvc-00000000-0000-4000-8000-{number:012}")
}

/// Orders a limit, as the operator does.
pub fn place(root: &Path, number: usize, generation: u64) -> Result<(), Failure> {
    let order = Order {
        volume: volume(number),
        directory: QuotaDirectory::parse(&directory(number))?,
        file_id: fs::metadata(root.join(directory(number)))?.ino(),
        generation,
        bytes: Some(generation * MIB),
        inodes: Some(1000),
    };
    let orders = quota_folder(root).join("orders");
    let draft = orders.join(format!(".draft-{}", order.volume));
    fs::write(&draft, seal().seal(&order)?)?;
    fs::rename(draft, orders.join(&order.volume))?;
    Ok(())
}

/// Returns the state and the generation in the report about a volume.
pub fn reported(root: &Path, number: usize) -> Result<(LimitState, u64), Failure> {
    let bytes = fs::read(quota_folder(root).join("reports").join(volume(number)))?;
    let (report, _) = seal().open::<Report>(&volume(number), &bytes)?;
    Ok((report.state, report.generation))
}
