//! Files for a test, in a folder that ends with it.

use std::path::Path;

use tempfile::TempDir;

/// A temporary folder with these files, given by path and text.
///
/// # Panics
///
/// When a file cannot be written.
#[must_use]
pub fn folder_of(files: &[(impl AsRef<Path>, impl AsRef<[u8]>)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        written.and_then(|()| std::fs::write(&path, text)).expect("a file in a new folder");
    }
    folder
}
