//! Copies a file, or a directory with everything below it, from one export to another.
//!
//! ```sh
//! cargo run --example copy -- old.example.com:/export/reports new.example.com:/export/reports
//! ```
//!
//! The target must not exist. The copy keeps modes, times, symbolic links and, where the target's server permits it, owners.
//! Devices, sockets and FIFOs are skipped; each hard link becomes a file of its own. A file that changes while it is copied
//! ends the copy with an error.

mod common;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Parser;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use nfs_client::address::ExportAddress;
use nfs_client::{Client, FileHandle, FileKind, FullAttributes, LookupResult, Name, NfsError, SetAttributes, Status};

/// Entries of a directory that are copied at a time.
const ENTRIES: usize = 8;
/// Parts of a file that are copied at a time.
const PARTS: usize = 4;

/// Copy a file or a tree from one NFS export to another.
#[derive(Parser)]
struct Arguments {
    /// What to copy.
    #[arg(value_name = "SERVER:/EXPORT/PATH", value_parser = ExportAddress::parse)]
    source: ExportAddress,
    /// Where to copy it; must not exist.
    #[arg(value_name = "SERVER:/EXPORT/PATH", value_parser = ExportAddress::parse)]
    target: ExportAddress,
    #[command(flatten)]
    options: common::ConnectOptions,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit_code(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<(), common::Error> {
    let (from, source) = arguments.options.connect_to_parent(&arguments.source).await?;
    let (to, target) = arguments.options.connect_to_parent(&arguments.target).await?;
    let copier = Copier {
        from: &from,
        to: &to,
        entries: Cell::new(0),
        bytes: Cell::new(0),
        owners_refused: Cell::new(0),
    };
    let copied = copier.copy(&source, &target).await;
    println!(
        "{} entries, {} copied",
        copier.entries.get(),
        common::human(copier.bytes.get())
    );
    if copier.owners_refused.get() > 0 {
        println!(
            "{} owners not kept: the target's server refuses them",
            copier.owners_refused.get()
        );
    }
    futures::join!(from.close(), to.close());
    copied
}

/// A directory that was created, and the one that it is a copy of.
struct Directory {
    source: FileHandle,
    target: FileHandle,
    attributes: FullAttributes,
}

struct Copier<'a> {
    from: &'a Client,
    to: &'a Client,
    entries: Cell<u64>,
    bytes: Cell<u64>,
    owners_refused: Cell<u64>,
}

impl Copier<'_> {
    /// Copies one name from the root of a client to the root of the other, with everything below it.
    async fn copy(&self, source: &Name, target: &Name) -> Result<(), common::Error> {
        let (source_root, target_root) = (self.from.root().await?.handle, self.to.root().await?.handle);
        let top = self.copy_entry((&source_root, source), (&target_root, target)).await?;
        let mut directories = Vec::from_iter(top);
        let mut done = 0;
        while let Some(directory) = directories.get(done) {
            let subdirectories = self.copy_entries(directory).await?;
            // Both servers are one, and the target is in the source.
            if subdirectories
                .iter()
                .any(|sub| Some(&sub.source) == directories.first().map(|top| &top.target))
            {
                return Err("the target is inside the source; choose another target".into());
            }
            directories.extend(subdirectories);
            done += 1;
        }
        // From the leaves to the root: copying into a directory changes its times.
        for directory in directories.iter().rev() {
            self.set_attributes(&directory.target, &directory.attributes).await?;
        }
        Ok(())
    }

    /// Copies the entries of a directory. Returns the subdirectories, which are still empty.
    async fn copy_entries(&self, directory: &Directory) -> Result<Vec<Directory>, common::Error> {
        let mut subdirectories = Vec::new();
        let mut position = None;
        loop {
            let page = self.from.list(&directory.source, position).await?;
            let mut copies = stream::iter(&page.entries)
                .map(|entry| self.copy_entry((&directory.source, &entry.name), (&directory.target, &entry.name)))
                .buffer_unordered(ENTRIES);
            while let Some(subdirectory) = copies.try_next().await? {
                subdirectories.extend(subdirectory);
            }
            match page.next {
                Some(next) => position = Some(next),
                None => return Ok(subdirectories),
            }
        }
    }

    /// Copies one entry. A directory is created, and returned for its entries to be copied.
    async fn copy_entry(
        &self,
        (source_parent, source_name): (&FileHandle, &Name),
        (parent, name): (&FileHandle, &Name),
    ) -> Result<Option<Directory>, common::Error> {
        let found = self.from.lookup_and_read(source_parent, source_name, 0).await?;
        let source = found.ok_or_else(|| format!("{source_name} does not exist in the source; check the path"))?;
        let mut directory = None;
        match source.details.attributes.kind {
            FileKind::Directory => {
                let private = SetAttributes {
                    mode: Some(0o700),
                    ..SetAttributes::default()
                };
                directory = Some(Directory {
                    source: source.handle,
                    target: self.to.make_directory(parent, name, private).await?.node.handle,
                    attributes: source.details,
                });
            }
            FileKind::Regular => self.copy_file(&source, parent, name).await?,
            FileKind::Symlink => {
                let target = self.from.read_link(&source.handle).await?;
                let link = self.to.create_symlink(parent, name, &target).await?;
                self.set_owner(&link.handle, &source.details).await?;
            }
            FileKind::Other => {
                println!("{source_name} skipped: neither a file, a directory nor a symbolic link");
                return Ok(None);
            }
        }
        self.entries.update(|entries| entries + 1);
        if self.entries.get().is_multiple_of(1000) {
            println!("{} entries, {} …", self.entries.get(), common::human(self.bytes.get()));
        }
        Ok(directory)
    }

    async fn copy_file(&self, source: &LookupResult, parent: &FileHandle, name: &Name) -> Result<(), common::Error> {
        let target = self.to.create_file(parent, name, b"", 0o600).await?.handle;
        let size = source.details.attributes.size;
        let part = self.from.max_transfer_sizes().0.min(self.to.max_transfer_sizes().1);
        let mut verifiers: BTreeSet<[u8; 8]> = stream::iter((0..size).step_by(part))
            .map(|begin| self.copy_part(&source.handle, &target, begin, size.min(begin + part as u64)))
            .buffer_unordered(PARTS)
            .try_concat()
            .await?;
        // Data is on stable storage only if the commit returns the verifier of every write: a server that restarts
        // changes it.
        verifiers.insert(self.to.commit(&target).await?);
        if verifiers.len() > 1 {
            return Err(format!("the target's server restarted while {name} was copied; copy again").into());
        }
        let now = self.from.full_attributes(&source.handle).await?;
        if now.change_token().differs_from(&source.details.change_token()) {
            return Err(format!("{name} changed while it was copied; copy again").into());
        }
        self.set_attributes(&target, &source.details).await
    }

    /// Copies the bytes from `begin` to `end`. Returns the verifiers of the writes.
    async fn copy_part(
        &self,
        source: &FileHandle,
        target: &FileHandle,
        begin: u64,
        end: u64,
    ) -> Result<BTreeSet<[u8; 8]>, NfsError> {
        let (mut offset, mut verifiers) = (begin, BTreeSet::new());
        while offset < end {
            let mut bytes = self.from.read(source, offset, (end - offset) as usize).await?.bytes;
            if bytes.is_empty() {
                // The file became shorter, so its change token differs.
                break;
            }
            // A server may accept only a part of a write.
            while !bytes.is_empty() {
                let written = self.to.write(target, offset, &bytes).await?;
                bytes = bytes.slice(written.count..);
                offset += written.count as u64;
                self.bytes.update(|bytes| bytes + written.count as u64);
                verifiers.insert(written.verifier);
            }
        }
        Ok(verifiers)
    }

    /// Sets owner, mode and times. A file that does not keep its owner loses its set-id bits.
    async fn set_attributes(&self, target: &FileHandle, source: &FullAttributes) -> Result<(), common::Error> {
        let is_owner_kept = self.set_owner(target, source).await?;
        let permitted = if is_owner_kept { 0o7777 } else { 0o1777 };
        let set = SetAttributes {
            mode: Some(source.attributes.mode & permitted),
            times: Some(source.times),
            ..SetAttributes::default()
        };
        self.to.set_attributes(target, set).await?;
        Ok(())
    }

    /// Sets the owner; returns false if the server refuses it.
    async fn set_owner(&self, target: &FileHandle, source: &FullAttributes) -> Result<bool, common::Error> {
        let owner = SetAttributes {
            uid: source.attributes.uid,
            gid: source.attributes.gid,
            ..SetAttributes::default()
        };
        match self.to.set_attributes(target, owner).await {
            Ok(_) => Ok(true),
            Err(error)
                if matches!(
                    error.status(),
                    Some(Status::NotPermitted | Status::Access | Status::BadOwner)
                ) =>
            {
                self.owners_refused.update(|refused| refused + 1);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}
