//! `nfs-operator archives`: lists the volumes and archives on an export, without a cluster.

mod print;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use export_store::{
    ExportError, ExportListing, ExportStore, KEY_LENGTH, ListedDirectory, PathReservations, RecordsKey, StoreConfig,
};
use nfs_client::Client;

use super::connection::{ConnectionArguments, export_error, message_of};
use super::output::OutputFormat;
use verify::Verified;

/// Help on the exit code, see [`exit_code`].
const EXIT_CODES: &str = "\
Exit code:
  0  the list is complete, and each record has its directory
  1  the export cannot be read: the reason is on standard error
  2  invalid arguments, or the key cannot be read
  3  manual inspection is required: a record is damaged or has a wrong signature, a directory is missing or a different one,
     an archive has no record, the list is incomplete, or a backup is not what was written";

/// Arguments of `nfs-operator archives`.
#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub struct ArchivesArguments {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// File with the key that signs records: the decoded `key` of the cluster's Secret. If unset, signatures are not checked.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Read all files of the backups, and compare them with the checksums in their manifests.
    #[arg(long)]
    verify: bool,
    /// Verify only the backup with this name; can be repeated.
    #[arg(long, value_name = "NAME", requires = "verify")]
    archive: Vec<String>,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
}

/// Lists the directories and prints them.
pub async fn run(arguments: ArchivesArguments) -> ExitCode {
    let key = match arguments.key_file.as_deref().map(read_key).transpose() {
        Ok(key) => key,
        Err(error) => {
            eprintln!("nfs-operator: {error}");
            return ExitCode::from(2);
        }
    };
    let (listing, verified) = match list(&arguments, key.as_ref()).await {
        Ok(listed) => listed,
        Err(error) => {
            eprintln!(
                "nfs-operator: {:?}: {}",
                error.kind(),
                print::plain(&message_of(&error))
            );
            return ExitCode::FAILURE;
        }
    };
    let text = match arguments.output {
        OutputFormat::Table => {
            let table = print::table(&listing);
            Ok(match arguments.verify {
                true => format!("{table}\n{}", verify::text(&verified)),
                false => table,
            })
        }
        OutputFormat::Json => print::json(&arguments.connection.export, &listing, &verified),
    };
    let printed = text
        .map_err(std::io::Error::from)
        .and_then(|text| match arguments.output {
            OutputFormat::Table => super::output::print_colored(&text),
            OutputFormat::Json => super::output::print(&text),
        });
    if let Err(error) = printed {
        return super::fail(&error);
    }
    for warning in &listing.unseen {
        eprintln!("nfs-operator: {}", print::plain(warning));
    }
    let missing = arguments
        .archive
        .iter()
        .filter(|name| !verified.iter().any(|verified| verified.is_of(name)));
    let missing: Vec<&String> = missing.collect();
    for name in &missing {
        eprintln!(
            "nfs-operator: there is no backup {} with a manifest",
            print::plain(name)
        );
    }
    ExitCode::from(exit_code(&listing, &verified).max(if missing.is_empty() { 0 } else { 3 }))
}

fn exit_code(listing: &ExportListing, verified: &[Verified]) -> u8 {
    let needs_inspection = !listing.unseen.is_empty()
        || listing.rows.iter().any(ListedDirectory::needs_attention)
        || verified.iter().any(Verified::needs_attention);
    if needs_inspection { 3 } else { 0 }
}

fn read_key(file: &Path) -> Result<RecordsKey, String> {
    let error_in_file = |message: String| format!("--key-file {}: {message}", file.display());
    let bytes = std::fs::read(file).map_err(|error| error_in_file(error.to_string()))?;
    let key: &[u8; KEY_LENGTH] = bytes.as_slice().try_into().map_err(|_| {
        error_in_file(format!(
            "a key has {KEY_LENGTH} bytes, but the file has {}: decode `data.key` of the Secret (base64 -d)",
            bytes.len()
        ))
    })?;
    Ok(RecordsKey::new(key))
}

async fn list(
    arguments: &ArchivesArguments,
    key: Option<&RecordsKey>,
) -> Result<(ExportListing, Vec<Verified>), ExportError> {
    let target = arguments.connection.target("archives");
    let credential = target.credential;
    let export = Client::connect(target)
        .await
        .map_err(|error| export_error("cannot open the export", error))?;
    let config = StoreConfig::read_only(credential);
    let store = ExportStore::new(export.clone(), config, Arc::new(PathReservations::default()));
    let listing = store.list(key).await;
    let verified = match &listing {
        Ok(listing) if arguments.verify => verify::verify(&store, listing, &arguments.archive, key).await,
        _ => Vec::new(),
    };
    export.close().await;
    listing.map(|listing| (listing, verified))
}
