//! The paths of a rack's files.

use std::io;
use std::path::{Path, PathBuf};

use rackpool_model::{ClientId, RackId};

/// The most daemons of one rack.
pub const MAX_DAEMONS: usize = 8;

/// The folder of one rack, or of one daemon of a rack with several: `<pool>/rack-<n>`, on a file
/// system that is memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RackDirectory(PathBuf);

impl RackDirectory {
    /// The folder of `rack` in the pool's folder.
    #[must_use]
    pub fn new(pool: &Path, rack: RackId) -> Self {
        Self(pool.join(format!("rack-{}", rack.0)))
    }

    /// The rack's folder at this path.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self(path.to_path_buf())
    }

    /// The folders of all racks in a pool's folder.
    pub fn all(pool: &Path) -> impl Iterator<Item = Self> + use<> {
        let entries = std::fs::read_dir(pool).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let rack = entry.file_name().to_str()?.strip_prefix("rack-")?.parse::<u16>();
            rack.is_ok().then(|| Self(entry.path()))
        })
    }

    /// The pool's folder.
    #[must_use]
    pub fn pool(&self) -> &Path {
        self.0.parent().unwrap_or(&self.0)
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file of the frames, or a link to their memory.
    #[must_use]
    pub fn frames(&self) -> PathBuf {
        self.0.join("frames")
    }

    /// The rack metadata.
    #[must_use]
    pub fn metadata(&self) -> PathBuf {
        self.0.join("metadata")
    }

    /// The lock words of the rack.
    #[must_use]
    pub fn locks(&self) -> PathBuf {
        self.0.join("locks")
    }

    /// The marks of the rack's objects.
    #[must_use]
    pub fn marks(&self) -> PathBuf {
        self.0.join("marks")
    }

    /// The file of one client.
    #[must_use]
    pub fn client(&self, client: ClientId) -> PathBuf {
        self.0.join(format!("client-{}", client.0))
    }

    /// The client whose file has this name.
    #[must_use]
    pub fn client_of(name: &str) -> Option<ClientId> {
        name.strip_prefix("client-")?.parse().ok().map(ClientId)
    }

    /// A link to the folder for files of spilled objects, if the rack has one.
    #[must_use]
    pub fn spill(&self) -> PathBuf {
        self.0.join("spill")
    }

    /// The daemon's socket for clients.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.0.join("daemon.sock")
    }

    /// The file that names the daemons of the rack, if it has several.
    #[must_use]
    pub fn daemons_file(&self) -> PathBuf {
        self.0.join("daemons")
    }

    /// Notes the numbers of all daemons of the rack, so that clients find them; removes the note if
    /// there is one daemon.
    ///
    /// # Errors
    /// The folder can't be written.
    pub fn note_daemons(&self, daemons: &[RackId]) -> io::Result<()> {
        let file = self.daemons_file();
        if daemons.len() < 2 {
            return match std::fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let numbers: Vec<String> = daemons.iter().map(|daemon| daemon.0.to_string()).collect();
        // A client that opens the pool meanwhile must not read half of it.
        let new = self.0.join("daemons.new");
        std::fs::write(&new, numbers.join(" ") + "\n")?;
        std::fs::rename(new, file)
    }

    /// The numbers of all daemons of the rack, as the daemon of this folder noted them; none if the
    /// rack has one daemon.
    #[must_use]
    pub fn daemons(&self) -> Vec<RackId> {
        let text = std::fs::read_to_string(self.daemons_file()).unwrap_or_default();
        let numbers = text.split_whitespace().filter_map(|number| number.parse().ok());
        numbers.take(MAX_DAEMONS).map(RackId).collect()
    }

    /// The daemons of the rack without `own`, that of this folder.
    #[must_use]
    pub fn siblings(&self, own: RackId) -> Vec<RackId> {
        let mut siblings = self.daemons();
        siblings.retain(|daemon| *daemon != own);
        siblings
    }

    /// The daemon's socket for the emulated fabric.
    #[must_use]
    pub fn fabric_socket(&self) -> PathBuf {
        self.0.join("fabric.sock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_daemons_of_a_rack_are_noted_and_one_is_not() {
        let pool = tempfile::tempdir().unwrap();
        let rack = RackDirectory::new(pool.path(), RackId(2));
        std::fs::create_dir(rack.path()).unwrap();
        assert_eq!(rack.daemons(), []);
        rack.note_daemons(&[RackId(2), RackId(3)]).unwrap();
        assert_eq!(rack.daemons(), [RackId(2), RackId(3)]);
        assert_eq!(rack.siblings(RackId(2)), [RackId(3)]);
        std::fs::write(rack.daemons_file(), "2 x 70000 5").unwrap();
        assert_eq!(rack.daemons(), [RackId(2), RackId(5)]);
        for _ in 0..2 {
            rack.note_daemons(&[RackId(2)]).unwrap();
            assert_eq!(rack.daemons(), []);
        }
    }

    #[test]
    fn a_client_is_known_by_the_name_of_its_file() {
        let rack = RackDirectory::new(Path::new("/pool"), RackId(3));
        let path = rack.client(ClientId(17));
        assert_eq!(path, Path::new("/pool/rack-3/client-17"));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        assert_eq!(RackDirectory::client_of(name), Some(ClientId(17)));
        assert_eq!(RackDirectory::client_of("client-x"), None);
        assert_eq!(RackDirectory::client_of("frames"), None);
    }
}
