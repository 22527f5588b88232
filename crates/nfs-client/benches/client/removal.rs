//! Listing and removal of trees, in comparison with sequential calls and with the same REMOVEs without a listing.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use nfs_client::{FileRef, Name, NfsError};

use crate::Failure;
use crate::fixture::{Fixture, named, tree};
use crate::meter::Meter;
use crate::table::{About, Row, Serial};

/// The tree of the goals.
const DIRECTORIES: usize = 20;
const FILES: usize = 450;
/// Names in a bare call, and bare calls in flight, as in a purge.
const CHUNK: usize = 64;
const IN_FLIGHT: usize = 6;
/// Number of sequential removals, from which the total is extrapolated.
const SAMPLE: usize = 100;

pub async fn measure(fixture: &Fixture, about: &About, large: usize) -> Result<Vec<Row>, Failure> {
    let bare = bare(fixture).await?;
    let alone = alone(fixture).await?;
    let objects = DIRECTORIES * FILES + DIRECTORIES;
    let mut rows = vec![removed(fixture, about, DIRECTORIES, FILES).await?];
    if let Some(row) = rows.pop() {
        // Over NFSv4, many removals share a round trip; over NFSv3, each has its own.
        let goal = (about.requested == 10).then_some(if about.version == "3" { 20 } else { 50 });
        let row = row.beside(Serial::sampled(alone, SAMPLE, objects), goal);
        rows.push(row.against_bare(bare, (about.requested == 0).then_some(1.5)));
    }
    let what = format!("the same {objects} REMOVEs, bare");
    rows.push(Row::new(about, what, objects, bare));
    tree(&fixture.disk.join("large"), 1, large)?;
    let folder = fixture.node(&["large"]).await?;
    rows.push(listed(fixture, about, &folder, large).await?);
    std::fs::rename(fixture.disk.join("large"), fixture.trash().join("pvc-large.1"))?;
    let row = purged(fixture, about, format!("remove 1 directory of {large}"), large + 1).await?;
    rows.push(row.beside(Serial::sampled(alone, SAMPLE, large + 1), None));
    Ok(rows)
}

/// Removes the whole tree with the purge.
async fn removed(fixture: &Fixture, about: &About, directories: usize, files: usize) -> Result<Row, Failure> {
    tree(&fixture.trash().join("pvc-tree.1"), directories, files)?;
    let what = format!("remove {directories} directories of {files}");
    purged(fixture, about, what, directories * files + directories + 1).await
}

async fn purged(fixture: &Fixture, about: &About, what: String, objects: usize) -> Result<Row, Failure> {
    let meter = Meter::put(&fixture.proxy);
    let began = Instant::now();
    let report = fixture.purge().await?;
    let took = began.elapsed();
    fixture.proxy.clear_hooks();
    if report.removed != objects as u64 {
        return Err(format!("{} of {objects} removed", report.removed).into());
    }
    Ok(Row::new(about, what, objects, took).with_readdir(meter.share_of(took)))
}

/// Reads every page of a listing. This is sequential, because each page starts where the previous one ended.
async fn listed(fixture: &Fixture, about: &About, folder: &FileRef, expected: usize) -> Result<Row, Failure> {
    let began = Instant::now();
    let (mut from, mut found, mut pages) = (None, 0, 0);
    loop {
        let page = fixture.nfs.list(&folder.handle, from).await?;
        (found, pages) = (found + page.entries.len(), pages + 1);
        match page.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    if found != expected {
        return Err(format!("{found} of {expected} listed").into());
    }
    Ok(Row::new(
        about,
        format!("list {found}, {pages} pages"),
        found,
        began.elapsed(),
    ))
}

/// Sends the REMOVEs of the tree alone, with the batch size and concurrency of the purge.
async fn bare(fixture: &Fixture) -> Result<Duration, Failure> {
    tree(&fixture.disk.join("bare"), DIRECTORIES, FILES)?;
    let top = fixture.node(&["bare"]).await?;
    let mut folders = Vec::new();
    for directory in 0..DIRECTORIES {
        folders.push(fixture.node(&["bare", &format!("directory-{directory}")]).await?);
    }
    let names: Vec<Name> = (0..FILES)
        .map(|file| named(&format!("file-{file}")))
        .collect::<Result<_, _>>()?;
    let chunks: Vec<(&FileRef, &[Name])> = folders
        .iter()
        .flat_map(|folder| names.chunks(CHUNK).map(move |chunk| (folder, chunk)))
        .collect();
    let began = Instant::now();
    let removals = stream::iter(chunks).map(async |(folder, chunk)| {
        fixture.nfs.remove_batch(&folder.handle, chunk).await?;
        Ok::<_, NfsError>(())
    });
    removals.buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
    let folders: Vec<Name> = (0..DIRECTORIES)
        .map(|directory| named(&format!("directory-{directory}")))
        .collect::<Result<_, _>>()?;
    fixture.nfs.remove_batch(&top.handle, &folders).await?;
    let took = began.elapsed();
    // This fails if anything is left.
    std::fs::remove_dir(fixture.disk.join("bare"))?;
    Ok(took)
}

/// Sends one name per call, one call at a time.
async fn alone(fixture: &Fixture) -> Result<Duration, Failure> {
    tree(&fixture.disk.join("alone"), 1, SAMPLE)?;
    let folder = fixture.node(&["alone"]).await?;
    let names: Vec<Name> = (0..SAMPLE)
        .map(|file| named(&format!("file-{file}")))
        .collect::<Result<_, _>>()?;
    let began = Instant::now();
    for name in &names {
        fixture
            .nfs
            .remove_batch(&folder.handle, std::slice::from_ref(name))
            .await?;
    }
    let took = began.elapsed();
    std::fs::remove_dir(fixture.disk.join("alone"))?;
    Ok(took)
}
