//! Snapshots of directory trees.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Returns everything below a directory by path, with its inode, mode, owner, modification time and content. Two equal
/// snapshots show that nothing was touched.
pub fn snapshot(root: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            // Removed meanwhile: the operator purges its trash in the background.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && folder != root => {
                found.remove(&folder.display().to_string());
                continue;
            }
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            let Some((is, content)) = read(&path)? else { continue };
            let seen = format!(
                "{} {:o} {}:{} {}.{} {content:?}",
                is.ino(),
                is.mode(),
                is.uid(),
                is.gid(),
                is.mtime(),
                is.mtime_nsec()
            );
            if is.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path.display().to_string(), seen);
        }
    }
    Ok(found)
}

/// Returns the attributes of a name and the content of a file, or `None` if it was removed meanwhile: the operator's probes
/// create and remove files.
fn read(path: &Path) -> std::io::Result<Option<(fs::Metadata, Vec<u8>)>> {
    let read = fs::symlink_metadata(path).and_then(|is| {
        let content = if is.is_file() { fs::read(path)? } else { Vec::new() };
        Ok((is, content))
    });
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}
