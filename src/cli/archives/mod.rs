//! `nfs-operator archives`: what lies on an export, from a shell, without a cluster.

mod print;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use export_store::{
    ErrorHints, ExportError, ExportListing, ExportStore, KEY_LENGTH, ListedDirectory, PathReservations, RecordsKey,
    StoreConfig,
};
use nfs_client::Client;

use super::connection::{Connection, Output};

/// What `--help` says about the exit code; the numbers are [`exit_code`]'s.
const EXIT_CODES: &str = "\
Exit code:
  0  all is listed, and each record has its directory
  1  the export can't be looked at: the reason is on standard error
  2  the arguments are wrong, or the key can't be read
  3  all is listed as far as it goes, and a person should look: a record that is damaged or wrongly signed, a directory that
     is missing or another one, an archive without a record, or more than can be listed";

/// Arguments of `nfs-operator archives`.
#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub struct ArchivesArguments {
    #[command(flatten)]
    connection: Connection,
    /// The key that records were signed with: `key` of the cluster's Secret, decoded. Absent: signatures are not checked.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
}

/// Looks and prints.
pub async fn run(arguments: ArchivesArguments) -> ExitCode {
    let key = match arguments.key_file.as_deref().map(read_key).transpose() {
        Ok(key) => key,
        Err(why) => {
            eprintln!("nfs-operator: {why}");
            return ExitCode::from(2);
        }
    };
    let survey = match look(&arguments.connection, key.as_ref()).await {
        Ok(survey) => survey,
        Err(error) => {
            eprintln!("nfs-operator: {:?}: {}", error.kind(), print::plain(&error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    let printed = match arguments.output {
        Output::Table => Ok(print::table(&survey)),
        Output::Json => print::json(&arguments.connection.export, &survey),
    };
    let printed = printed
        .map_err(std::io::Error::from)
        .and_then(|text| super::print(&text));
    if let Err(error) = printed {
        return super::fail(&error);
    }
    for unseen in &survey.unseen {
        eprintln!("nfs-operator: {}", print::plain(unseen));
    }
    ExitCode::from(exit_code(&survey))
}

fn exit_code(survey: &ExportListing) -> u8 {
    let odd = !survey.unseen.is_empty() || survey.rows.iter().any(ListedDirectory::is_odd);
    if odd { 3 } else { 0 }
}

fn read_key(file: &Path) -> Result<RecordsKey, String> {
    let told = |why: String| format!("--key-file {}: {why}", file.display());
    let bytes = std::fs::read(file).map_err(|error| told(error.to_string()))?;
    let key: &[u8; KEY_LENGTH] = bytes.as_slice().try_into().map_err(|_| {
        told(format!(
            "it has {} bytes, and a key has {KEY_LENGTH}: decode `data.key` of the Secret (base64 -d)",
            bytes.len()
        ))
    })?;
    Ok(RecordsKey::new(key))
}

async fn look(connection: &Connection, key: Option<&RecordsKey>) -> Result<ExportListing, ExportError> {
    let target = connection.target("archives");
    let credential = target.credential;
    let export = Client::connect(target).await.map_err(|source| ExportError::Nfs {
        doing: "cannot open the export".to_owned(),
        source: Box::new(source),
        circumstances: ErrorHints::default(),
    })?;
    let keeper = StoreConfig::read_only(credential);
    let managed = ExportStore::new(export.clone(), keeper, Arc::new(PathReservations::default()));
    let survey = managed.list(key).await;
    export.close().await;
    survey
}
