//! Checks that other users of the host cannot replace the contents of the folder of a pool, a store
//! or credentials.
//!
//! A folder such as `/dev/shm` is open to all users: another user can create the pool's folder
//! first and then replace its contents. Programs therefore resolve links and check owner and mode
//! of every folder on the path, as sshd does.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const ROOT: u32 = 0;
const STICKY: u32 = 0o1000;
const WRITABLE_BY_ALL: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;
const OPEN_TO_OTHERS: u32 = 0o077;

/// The reason why a folder is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The operating system refused.
    #[error("can't {action} {path}: {source}")]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The path is not UTF-8, but other processes receive it as text.
    #[error(
        "the path {path:?} is not UTF-8, and other processes are told it as text: name another folder"
    )]
    NotText {
        /// The path.
        path: PathBuf,
    },
    /// Another user owns the folder or one of its parents.
    #[error(
        "{folder} belongs to user {owner} (mode {mode:03o}), this process to user {own}: user {owner} can replace what lies in it; name another folder, or have this one removed"
    )]
    OtherUser {
        /// The folder that the other user owns.
        folder: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
        /// This process's user.
        own: u32,
    },
    /// Other users can replace the contents of the folder or of one of its parents.
    #[error(
        "other users can write to {folder} (owner {owner}, mode {mode:03o}) and replace what lies in it: `chmod go-w {folder}`, or name a folder of your own"
    )]
    Writable {
        /// The writable folder.
        folder: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// The folder is sticky and writable for all users: each user can create files in it and owns
    /// them.
    #[error(
        "other users can make files in {folder} (owner {owner}, mode {mode:03o}): name a folder of your own in it, like {folder}/rackpool"
    )]
    Sticky {
        /// The sticky folder.
        folder: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Other users can enter a folder that must be private to its owner.
    #[error(
        "{folder} is open to other users (owner {owner}, mode {mode:03o}): `chmod 700 {folder}`"
    )]
    Open {
        /// The folder.
        folder: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FolderError + 'a {
    move |source| FolderError::Io { action, path: path.to_path_buf(), source }
}

/// Returns the path of a folder with links resolved, if only this user and root can replace its
/// contents: every folder from the root on belongs to one of them; none is writable by others
/// unless it is sticky; the last one is not writable by others even then.
///
/// # Errors
/// [`FolderError`] names the folder that another user owns or can write to, and a remedy.
pub fn require_trusted(path: &Path) -> Result<PathBuf, FolderError> {
    let resolved = resolve(path)?;
    let users = TrustedUsers::here()?;
    let found = users.require_way(&resolved)?;
    if is_writable_by_others(&found) {
        return Err(writable(&resolved, &found));
    }
    Ok(resolved)
}

/// Like [`require_trusted`], for a folder that belongs to this user and that no other user can
/// enter.
///
/// # Errors
/// As for [`require_trusted`], and if the folder belongs to root or is open to others.
pub fn require_private(path: &Path) -> Result<PathBuf, FolderError> {
    let resolved = resolve(path)?;
    let users = TrustedUsers::here()?;
    let found = users.require_way(&resolved)?;
    let (owner, mode) = (found.uid(), permissions(&found));
    if owner != users.own {
        return Err(users.other(&resolved, &found));
    }
    if mode & OPEN_TO_OTHERS != 0 {
        return Err(FolderError::Open { folder: resolved, owner, mode });
    }
    Ok(resolved)
}

/// Creates the missing folders of a path for this user only, and checks the whole path as
/// [`require_trusted`] does. Creates nothing in a folder that is not safe.
///
/// # Errors
/// As for [`require_trusted`], and if a folder cannot be created.
pub fn create(path: &Path) -> Result<PathBuf, FolderError> {
    let absolute = std::path::absolute(path).map_err(failed("find", path))?;
    let there = absolute.ancestors().find(|folder| folder.exists());
    if let Some(there) = there {
        TrustedUsers::here()?.require_way(&resolve(there)?)?;
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&absolute)
        .map_err(failed("create", path))?;
    require_trusted(&absolute)
}

/// Fails for a path that cannot be passed to other processes as text.
///
/// # Errors
/// [`FolderError::NotText`] if the path is not UTF-8.
pub fn require_text(path: &Path) -> Result<(), FolderError> {
    let text = path.to_str().map(drop);
    text.ok_or_else(|| FolderError::NotText { path: path.to_path_buf() })
}

fn resolve(path: &Path) -> Result<PathBuf, FolderError> {
    // A bare file name has the empty path as its parent: the current folder.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    path.canonicalize().map_err(failed("find", path))
}

/// Where each user has a group of the same number, only the owner is in that group.
fn is_writable_by_others(found: &Metadata) -> bool {
    let is_own_group = found.gid() == found.uid();
    found.mode() & WRITABLE_BY_ALL != 0 || (found.mode() & WRITABLE_BY_GROUP != 0 && !is_own_group)
}

fn permissions(found: &Metadata) -> u32 {
    found.mode() & 0o7777
}

fn writable(folder: &Path, found: &Metadata) -> FolderError {
    let (folder, owner, mode) = (folder.to_path_buf(), found.uid(), permissions(found));
    if mode & STICKY != 0 {
        FolderError::Sticky { folder, owner, mode }
    } else {
        FolderError::Writable { folder, owner, mode }
    }
}

/// The users that may own a trusted folder.
struct TrustedUsers {
    own: u32,
    /// The owner of `/`, who can replace everything: root, or the user that a user namespace maps
    /// to it.
    top: u32,
}

impl TrustedUsers {
    fn here() -> Result<Self, FolderError> {
        let top = Path::new("/").metadata().map_err(failed("look at", Path::new("/")))?.uid();
        Ok(Self { own: rustix::process::geteuid().as_raw(), top })
    }

    fn are_trusted(&self, owner: u32) -> bool {
        [ROOT, self.own, self.top].contains(&owner)
    }

    fn other(&self, folder: &Path, found: &Metadata) -> FolderError {
        let (folder, owner, mode) = (folder.to_path_buf(), found.uid(), permissions(found));
        FolderError::OtherUser { folder, owner, mode, own: self.own }
    }

    /// Checks each folder of a resolved path. Returns the metadata of the last one.
    fn require_way(&self, resolved: &Path) -> Result<Metadata, FolderError> {
        let mut last = None;
        let mut folders: Vec<&Path> = resolved.ancestors().collect();
        folders.reverse();
        for folder in folders {
            let found = folder.metadata().map_err(failed("look at", folder))?;
            if !found.is_dir() {
                return Err(failed("enter", folder)(io::ErrorKind::NotADirectory.into()));
            }
            if !self.are_trusted(found.uid()) {
                return Err(self.other(folder, &found));
            }
            if is_writable_by_others(&found) && found.mode() & STICKY == 0 {
                return Err(writable(folder, &found));
            }
            last = Some(found);
        }
        last.ok_or_else(|| failed("find", resolved)(io::ErrorKind::NotFound.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const OTHER_USER: u32 = 65534;

    /// Creates a folder with this mode.
    fn made(path: PathBuf, mode: u32) -> PathBuf {
        create_dir(&path).unwrap();
        set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Gives a folder to another user, which only root can do. Returns whether it succeeded.
    fn given_away(path: &Path) -> bool {
        let given = chown(path, Some(OTHER_USER), Some(OTHER_USER)).is_ok();
        if !given {
            rackpool_testing::skipped("only root can make a folder of another user");
        }
        given
    }

    #[test]
    fn a_folder_of_another_user_is_refused_anywhere_on_the_way() {
        let top = tempfile::tempdir().unwrap();
        let open = made(top.path().join("open"), 0o1777);
        let theirs = made(open.join("pool"), 0o755);
        let rack = made(theirs.join("rack-0"), 0o700);
        if !given_away(&theirs) {
            return;
        }
        for path in [&theirs, &rack] {
            for checked in [require_trusted(path), require_private(path), create(path)] {
                let error = checked.unwrap_err();
                assert!(
                    matches!(&error, FolderError::OtherUser { folder, owner: OTHER_USER, .. }
                        if folder.ends_with("open/pool")),
                    "{error}"
                );
                let said = error.to_string();
                assert!(
                    said.contains("65534 (mode 755)") && said.contains("name another"),
                    "{said}"
                );
            }
        }
        create(&theirs.join("new")).unwrap_err();
        assert!(!theirs.join("new").exists(), "nothing is made there");
    }

    #[test]
    fn a_link_is_followed_and_its_target_is_checked_and_used() {
        let top = tempfile::tempdir().unwrap();
        let target = made(top.path().join("target"), 0o700);
        let link = top.path().join("link");
        symlink(&target, &link).unwrap();
        let resolved = target.canonicalize().unwrap();
        for checked in [require_trusted(&link), require_private(&link), create(&link)] {
            assert_eq!(checked.unwrap(), resolved);
        }
        assert_eq!(create(&link.join("deep/er")).unwrap(), resolved.join("deep/er"));
        if given_away(&target) {
            for checked in [require_trusted(&link), require_private(&link), create(&link)] {
                assert!(matches!(checked, Err(FolderError::OtherUser { .. })), "{checked:?}");
            }
        }
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_passed_through_only_when_sticky() {
        let top = tempfile::tempdir().unwrap();
        let open = made(top.path().join("open"), 0o1777);
        let pool = made(open.join("pool"), 0o755);
        require_trusted(&pool).unwrap();
        let error = require_trusted(&open).unwrap_err();
        assert!(error.to_string().contains("open/rackpool"), "{error}");
        let refused = |mode| {
            set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            let error = require_trusted(&pool).unwrap_err();
            assert!(matches!(error, FolderError::Writable { .. }), "{error}");
            assert!(error.to_string().contains("`chmod go-w "), "{error}");
        };
        refused(0o777);
        refused(0o757);
        let own = rustix::process::geteuid().as_raw();
        if chown(&open, None, Some(own + 1)).is_ok() {
            refused(0o775);
            chown(&open, None, Some(own)).unwrap();
            set_permissions(&open, Permissions::from_mode(0o775)).unwrap();
            require_trusted(&open.join("pool")).unwrap();
        } else {
            rackpool_testing::skipped("only root can give a folder to another group");
        }
        set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        require_trusted(&open).unwrap();
    }

    #[test]
    fn a_private_folder_is_for_its_owner_alone() {
        let top = tempfile::tempdir().unwrap();
        let rack = made(top.path().join("rack"), 0o750);
        let error = require_private(&rack).unwrap_err().to_string();
        assert!(error.contains("mode 750") && error.contains("`chmod 700 "), "{error}");
        set_permissions(&rack, Permissions::from_mode(0o700)).unwrap();
        require_private(&rack).unwrap();
        let new = create(&top.path().join("a/b")).unwrap();
        require_private(&new).unwrap();
        require_private(new.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_is_missing_or_no_folder_is_said() {
        let top = tempfile::tempdir().unwrap();
        let file = top.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [&file, &top.path().join("missing")] {
            let error = require_trusted(path).unwrap_err();
            assert!(matches!(error, FolderError::Io { .. }), "{error}");
        }
        create(&file).unwrap_err();
    }
}
