//! Creates and renames, concurrent and sequential.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use nfs_client::{FileRef, Name, NfsError};

use crate::Failure;
use crate::fixture::{Fixture, named};
use crate::table::{About, Row, Serial};

/// Number of concurrent calls in the goal.
const TOGETHER: usize = 32;
/// Number of sequential calls, from which the total is extrapolated.
const SAMPLE: usize = 40;

pub async fn measure(fixture: &Fixture, about: &About, count: usize) -> Result<Vec<Row>, Failure> {
    let folder = fixture.directory("small").await?;
    let goal = |goal| (about.requested == 10).then_some(goal);
    // Warm up the threads and caches of the server.
    create(fixture, &folder, count + SAMPLE..count + SAMPLE + TOGETHER, TOGETHER).await?;
    let together = create(fixture, &folder, 0..count, TOGETHER).await?;
    let alone = create(fixture, &folder, count..count + SAMPLE, 1).await?;
    // Sequential: over NFSv3 CREATE and SETATTR, over NFSv4 one COMPOUND.
    let calls = if about.version == "3" { 2 } else { 1 };
    let bare = looks(fixture, &folder, count, calls).await?;
    let created = Row::new(about, format!("create, {TOGETHER} at a time"), count, together);
    let together = rename(fixture, &folder, 0..count, TOGETHER).await?;
    let alone_renamed = rename(fixture, &folder, count..count + SAMPLE, 1).await?;
    let renamed = Row::new(about, format!("rename, {TOGETHER} at a time"), count, together);
    Ok(vec![
        created
            .beside(Serial::sampled(alone, SAMPLE, count), goal(20))
            .against_bare(bare, None),
        renamed.beside(Serial::sampled(alone_renamed, SAMPLE, count), None),
    ])
}

async fn create(
    fixture: &Fixture,
    folder: &FileRef,
    numbers: std::ops::Range<usize>,
    together: usize,
) -> Result<Duration, Failure> {
    let names = names("file", numbers)?;
    let began = Instant::now();
    let creates = stream::iter(&names).map(async |name| {
        fixture.nfs.create_file(&folder.handle, name, b"", 0o644).await?;
        Ok::<_, NfsError>(())
    });
    creates.buffer_unordered(together).try_collect::<()>().await?;
    Ok(began.elapsed())
}

/// The same number of the cheapest calls, which shows the cost of the round trip, the proxy and the machine.
async fn looks(fixture: &Fixture, folder: &FileRef, count: usize, calls: usize) -> Result<Duration, Failure> {
    let began = Instant::now();
    let looks = stream::iter(0..count).map(async |_| {
        for _ in 0..calls {
            fixture.nfs.attributes(&folder.handle).await?;
        }
        Ok::<_, NfsError>(())
    });
    looks.buffer_unordered(TOGETHER).try_collect::<()>().await?;
    Ok(began.elapsed())
}

async fn rename(
    fixture: &Fixture,
    folder: &FileRef,
    numbers: std::ops::Range<usize>,
    together: usize,
) -> Result<Duration, Failure> {
    let (from, to) = (names("file", numbers.clone())?, names("renamed", numbers)?);
    // Look up each name before the measurement.
    let mut known = Vec::new();
    for name in &from {
        use std::os::unix::fs::MetadataExt as _;
        let path = fixture.disk.join("small").join(name.to_string());
        known.push(std::fs::metadata(path)?.ino());
    }
    let began = Instant::now();
    let handle = &folder.handle;
    let all = from.iter().zip(&to).zip(known);
    let renames = stream::iter(all)
        .map(async |((from, to), fileid)| fixture.nfs.rename((handle, from), fileid, (handle, to)).await);
    renames.buffer_unordered(together).try_collect::<()>().await?;
    Ok(began.elapsed())
}

fn names(word: &str, numbers: std::ops::Range<usize>) -> Result<Vec<Name>, Failure> {
    numbers.map(|number| named(&format!("{word}-{number}"))).collect()
}
