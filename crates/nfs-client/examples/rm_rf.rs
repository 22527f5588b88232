//! Removes a file, or a directory with everything below it.
//!
//! ```sh
//! cargo run --example rm_rf -- nfs.example.com:/export/reports/2019
//! ```
//!
//! The tree is removed by handles: each directory is entered by the handle that was looked up, never by its path, so that
//! the removal cannot be diverted by renaming a directory or by replacing it with a symbolic link. Each entry is removed
//! only if the name still belongs to the listed fileid (checked in the same request on NFSv4, just before it on NFSv3).
//! Symbolic links are removed, never followed. Other file systems are not entered.

mod common;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use futures::{StreamExt as _, stream};
use nfs_client::address::ExportAddress;
use nfs_client::{Client, FileHandle, FileKind, FileRef, Name, NfsError, Status};

/// Removals in flight at a time, on one connection.
const REMOVALS: usize = 32;

/// Remove a file or a tree from an NFS export. Asks for the path before it removes anything.
#[derive(Parser)]
struct Arguments {
    /// What to remove.
    #[arg(value_name = "SERVER:/EXPORT/PATH", value_parser = ExportAddress::parse)]
    path: ExportAddress,
    #[command(flatten)]
    options: common::ConnectOptions,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit_code(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<(), common::Error> {
    let (client, name) = arguments.options.connect_to_parent(&arguments.path).await?;
    let removed = confirm_and_remove(&client, &name, &arguments.path).await;
    client.close().await;
    removed
}

async fn confirm_and_remove(client: &Client, name: &Name, path: &ExportAddress) -> Result<(), common::Error> {
    let parent = client.root().await?;
    let found = client.lookup(&parent.handle, name).await?;
    let file = found.ok_or_else(|| format!("{path} does not exist; check the path"))?;
    if file.attributes.fsid != parent.attributes.fsid {
        return Err(format!("{path} is the root of a file system; remove what is in it instead").into());
    }

    print!("Remove {path} and everything below it? Type {} to confirm: ", path.path);
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if answer.trim_end_matches('\n') != path.path {
        return Err("not confirmed; nothing was removed".into());
    }

    let mut removal = Removal { client, removed: 0 };
    let result = removal.remove(parent.handle, name.clone(), file).await;
    println!("{} removed", removal.removed);
    result
}

/// A directory that is being emptied.
struct Level {
    parent: FileHandle,
    name: Name,
    directory: FileRef,
    /// What is left in it.
    subdirectories: Vec<Name>,
}

struct Removal<'a> {
    client: &'a Client,
    removed: u64,
}

impl Removal<'_> {
    /// Removes a file, or a tree from its leaves to its root.
    async fn remove(&mut self, parent: FileHandle, name: Name, file: FileRef) -> Result<(), common::Error> {
        if file.attributes.kind != FileKind::Directory {
            let removal = self.client.remove_file(&parent, &name, file.attributes.fileid);
            return self.count(removal.await);
        }
        let file_system = file.attributes.fsid;
        let mut levels = vec![self.enter(parent, name, file).await?];
        while let Some(level) = levels.last_mut() {
            let (parent, Some(name)) = (&level.directory.handle, level.subdirectories.pop()) else {
                let fileid = level.directory.attributes.fileid;
                let removal = self.client.remove_directory(&level.parent, &level.name, fileid);
                self.count(removal.await)?;
                levels.pop();
                continue;
            };
            let Some(directory) = self.client.lookup(parent, &name).await? else {
                continue;
            };
            if directory.attributes.fsid != file_system {
                return Err(format!("{name} is another file system; unmount it on the server").into());
            }
            let level = self.enter(parent.clone(), name, directory).await?;
            levels.push(level);
        }
        Ok(())
    }

    /// Lists a directory and removes everything in it but its subdirectories.
    async fn enter(&mut self, parent: FileHandle, name: Name, directory: FileRef) -> Result<Level, common::Error> {
        let (mut subdirectories, mut files) = (Vec::new(), Vec::new());
        let mut position = None;
        loop {
            let page = self.client.list(&directory.handle, position).await?;
            for entry in page.entries {
                match (entry.kind, entry.fileid) {
                    (Some(FileKind::Directory), _) => subdirectories.push(entry.name),
                    (Some(_), Some(fileid)) => files.push((entry.name, fileid)),
                    _ => return Err(format!("the server cannot read {}; check its disk", entry.name).into()),
                }
            }
            match page.next {
                Some(next) => position = Some(next),
                None => break,
            }
        }
        self.remove_files(&directory.handle, &files).await?;
        Ok(Level {
            parent,
            name,
            directory,
            subdirectories,
        })
    }

    async fn remove_files(&mut self, directory: &FileHandle, files: &[(Name, u64)]) -> Result<(), common::Error> {
        let client = self.client;
        let mut removals = stream::iter(files)
            .map(async |(name, fileid)| client.remove_file(directory, name, *fileid).await)
            .buffer_unordered(REMOVALS);
        while let Some(removal) = removals.next().await {
            self.count(removal)?;
        }
        Ok(())
    }

    /// Counts a removal, and shows the progress.
    fn count(&mut self, result: Result<(), NfsError>) -> Result<(), common::Error> {
        match result {
            Ok(()) => self.removed += 1,
            // Somebody else removed it.
            Err(error) if error.status() == Some(Status::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        if self.removed.is_multiple_of(1000) {
            println!("{} removed …", self.removed);
        }
        Ok(())
    }
}
