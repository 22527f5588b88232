//! Lists a directory: mode, links, owner, group, size and name of each entry.
//!
//! ```sh
//! cargo run --example ls -- nfs.example.com:/export/reports
//! ```

mod common;

use std::process::ExitCode;

use clap::Parser;
use futures::{StreamExt as _, stream};
use nfs_client::address::ExportAddress;
use nfs_client::{Client, FileKind, FileRef, Name};

/// Lookups in flight at a time, on one connection.
const LOOKUPS: usize = 32;

/// List a directory of an NFS export.
#[derive(Parser)]
struct Arguments {
    /// The directory.
    #[arg(value_name = "SERVER:/EXPORT[/PATH]", value_parser = ExportAddress::parse)]
    directory: ExportAddress,
    #[command(flatten)]
    options: common::ConnectOptions,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit_code(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<(), common::Error> {
    let client = arguments.options.connect(&arguments.directory).await?;
    let listed = list(&client).await;
    client.close().await;
    listed
}

async fn list(client: &Client) -> Result<(), common::Error> {
    let directory = client.root().await?.handle;
    let mut position = None;
    loop {
        let page = client.list(&directory, position).await?;
        // A page holds what fits into one reply: names and kinds. Owner and mode take a lookup for each entry.
        let mut lookups = stream::iter(&page.entries)
            .map(async |entry| (&entry.name, client.lookup(&directory, &entry.name).await))
            .buffered(LOOKUPS);
        while let Some((name, found)) = lookups.next().await {
            // `None`: removed since it was listed.
            if let Some(file) = found? {
                print(client, name, &file).await?;
            }
        }
        match page.next {
            Some(next) => position = Some(next),
            None => return Ok(()),
        }
    }
}

async fn print(client: &Client, name: &Name, file: &FileRef) -> Result<(), common::Error> {
    let attributes = &file.attributes;
    print!(
        "{}{} {:>4} {:>8} {:>8} {:>12} {name}",
        match attributes.kind {
            FileKind::Regular => '-',
            FileKind::Directory => 'd',
            FileKind::Symlink => 'l',
            FileKind::Other => '?',
        },
        permissions(attributes.mode),
        attributes.links,
        attributes.owner,
        attributes.group,
        attributes.size,
    );
    match attributes.kind {
        FileKind::Symlink => println!(" -> {}", client.read_link(&file.handle).await?.escape_ascii()),
        _ => println!(),
    }
    Ok(())
}

/// Returns the permission bits as `rwxr-x---`, with the set-id and sticky bits.
fn permissions(mode: u32) -> String {
    let bits = "rwxrwxrwx".char_indices();
    let mut text: Vec<char> = bits
        .map(|(at, letter)| if mode & (0o400 >> at) != 0 { letter } else { '-' })
        .collect();
    for (bit, at, letter) in [(0o4000, 2, 's'), (0o2000, 5, 's'), (0o1000, 8, 't')] {
        if let Some(execute) = text.get_mut(at)
            && mode & bit != 0
        {
            *execute = if *execute == 'x' {
                letter
            } else {
                letter.to_ascii_uppercase()
            };
        }
    }
    text.into_iter().collect()
}
