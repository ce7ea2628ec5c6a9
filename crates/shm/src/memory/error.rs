use std::io;
use std::path::PathBuf;

use rackpool_model::ByteSize;

use crate::OutOfBounds;
use crate::file::FileError;
use crate::host::{HugePage, list_text};
use crate::room::Room;

/// Why the memory of a rack can't be had. Each text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A file can't be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The kernel refused to map or to bind the memory.
    #[error("can't {action} {what}: {source}{}", hint(source))]
    System {
        /// What was tried.
        action: &'static str,
        /// On what.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The rack's memory is not there any more.
    #[error("{file} is missing: remove {folder} to give the rack's contents up")]
    Missing {
        /// The file that is not there.
        file: PathBuf,
        /// The rack's folder.
        folder: PathBuf,
    },
    /// The folder is not on a file system that is memory.
    #[error(
        "{folder} lies on {file_system}, which is no memory: choose a --dir on a tmpfs such as /dev/shm, or --memory-kind memfd"
    )]
    NotMemory {
        /// The rack's folder.
        folder: PathBuf,
        /// The file system that it lies on.
        file_system: String,
    },
    /// Memory of another kind was begun.
    #[error(
        "{link} leads to memory of another kind: remove {target} if it is a file, and that link"
    )]
    Linked {
        /// Where memory usually is.
        link: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// The memory is no whole number of its pages.
    #[error(
        "--memory {bytes}: {kind} needs a multiple of {}; the next one is {next}",
        ByteSize(*unit), next = bytes.next_multiple_of(*unit)
    )]
    NotWhole {
        /// The kind of memory.
        kind: String,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of which it must be a multiple.
        unit: u64,
    },
    /// The file system of the rack's folder is too small.
    #[error("--memory {}: {room}: {}{}", ByteSize(*bytes), room.fix(room.missing()), or_less(*most))]
    NoRoom {
        /// Bytes asked for.
        bytes: u64,
        /// The room there is, with the rack's files.
        room: Room,
        /// Bytes of memory for which there is room; 0 if that is not what is missing.
        most: u64,
    },
    /// No file system of huge pages is mounted.
    #[error(
        "no hugetlbfs with pages of {0} is mounted where this user may write: mkdir -p /dev/hugepages-{0} && mount -t hugetlbfs -o pagesize={0},uid=$(id -u),mode=0700 none /dev/hugepages-{0}"
    )]
    NoHugeMount(HugePage),
    /// What is mounted is something else than was asked for.
    #[error(
        "{folder} is no hugetlbfs with pages of {page}: mount one there, or choose another --memory-kind"
    )]
    NotHugetlbfs {
        /// The mount.
        folder: PathBuf,
        /// The pages that were asked for.
        page: HugePage,
    },
    /// There are not enough huge pages.
    #[error(
        "huge:{page} needs {needed} huge pages, {available} of {total} can be had: reserve them with `echo {} > {}` (early after boot, when memory is not in pieces), or choose another --memory-kind",
        total + (needed - available), page.pool_file()
    )]
    TooFewHugePages {
        /// The size of a page.
        page: HugePage,
        /// Pages needed.
        needed: u64,
        /// Pages that can be had.
        available: u64,
        /// Pages reserved for all.
        total: u64,
    },
    /// The path of the rack's folder is too long for a name on hugetlbfs.
    #[error("{0} is too long: huge pages need a --dir of at most 150 bytes")]
    LongPath(PathBuf),
    /// There is no such NUMA node.
    #[error(
        "there is no NUMA node {node} with memory, there are {}: choose one of them, see `rackpool doctor`",
        list_text(there)
    )]
    NoNode {
        /// The node asked for.
        node: u32,
        /// The nodes that have memory.
        there: Vec<u32>,
    },
    /// The NUMA node has too little memory left.
    #[error(
        "NUMA node {node} has {} free, {} are needed: ask for less --memory, or end what uses memory of that node",
        ByteSize(*free), ByteSize(*needed)
    )]
    NodeFull {
        /// The node.
        node: u32,
        /// Bytes free on it.
        free: u64,
        /// Bytes that have to be allocated.
        needed: u64,
    },
    /// Pages came from another node than was asked for.
    #[error(
        "the page at {offset} lies on NUMA node {found} instead of {wanted}: choose --memory-kind numa:{found}, or remove the rack's folder and let the daemon use node {wanted} (its cpuset's `cpuset.mems` must have it)"
    )]
    Elsewhere {
        /// Where in the memory.
        offset: u64,
        /// The node it lies on.
        found: u32,
        /// The node it should lie on.
        wanted: u32,
    },
    /// It is no dax device.
    #[error(
        "{path} is no dax device ({why}): name one of /dev/dax*; `daxctl reconfigure-device --mode=devdax` makes one of memory that the kernel manages"
    )]
    NotDax {
        /// The path.
        path: PathBuf,
        /// What it is instead.
        why: String,
    },
    /// The dax device is too small.
    #[error(
        "{path} has {}, of which the last {} are needed for its mark: ask for at most --memory {}",
        ByteSize(*bytes), ByteSize(*align), (bytes / align).saturating_sub(1) * align
    )]
    DaxTooSmall {
        /// The device.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// Its alignment in bytes.
        align: u64,
    },
    /// The dax device holds the memory of somebody else.
    #[error(
        "{0} holds other memory than this rack's: it was used by another pool since; name the right device, or remove the rack's folder to give its contents up"
    )]
    DaxForeign(PathBuf),
    /// An access outside the memory: a fault in this program.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
}

fn or_less(most: u64) -> String {
    match most >> 20 {
        0 => String::new(),
        most => format!(", or ask for at most --memory {most}M"),
    }
}

/// What to do about refusals that any kind of memory can meet.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (run as a user who may; in a container, allow the system call)"
        }
        io::ErrorKind::Unsupported => {
            " (this kernel or sandbox has no such call: choose another --memory-kind)"
        }
        io::ErrorKind::OutOfMemory => {
            " (too little memory or address space: ask for less --memory)"
        }
        io::ErrorKind::StorageFull => {
            " (the file system is full: ask for less --memory, or mount it with a larger size=)"
        }
        io::ErrorKind::AlreadyExists => {
            " (memory of another kind was begun there: remove that file)"
        }
        _ => "",
    }
}

pub(super) fn system<'a>(
    action: &'static str,
    what: impl std::fmt::Display + 'a,
) -> impl FnOnce(io::Error) -> MemoryError + 'a {
    move |source| MemoryError::System { action, what: what.to_string(), source }
}
