use std::io;
use std::path::PathBuf;

use rackpool_model::ByteSize;

use crate::OutsideMapping;
use crate::file::FileError;
use crate::free_space::Room;
use crate::host::{HugePage, list_text};

/// The reason why the memory of a rack is not available. Each text names a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The kernel refused an operation on the memory.
    #[error("can't {action} {what}: {source}{}", hint(source))]
    System {
        /// The attempted action.
        action: &'static str,
        /// The object of the action.
        what: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The rack's memory is missing.
    #[error("{file} is missing: remove {folder} to start with an empty rack")]
    Missing {
        /// The missing file.
        file: PathBuf,
        /// The rack's folder.
        folder: PathBuf,
    },
    /// The folder is not on a memory file system.
    #[error(
        "{folder} lies on {file_system}, which is no memory: choose a --dir on a tmpfs such as /dev/shm, or --memory-kind memfd"
    )]
    NotMemory {
        /// The rack's folder.
        folder: PathBuf,
        /// The file system that contains the folder.
        file_system: String,
    },
    /// The link at the place of the frames leads to memory of another kind.
    #[error(
        "{link} leads to memory of another kind: remove {target} if it is a file, and that link"
    )]
    Linked {
        /// The path of the frames.
        link: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
    /// The size is not a multiple of the page size of this kind of memory.
    #[error(
        "--memory {bytes}: {kind} needs a multiple of {}; the next one is {next}",
        ByteSize(*unit), next = bytes.next_multiple_of(*unit)
    )]
    NotWhole {
        /// The kind of memory.
        kind: String,
        /// Requested bytes.
        bytes: u64,
        /// Required unit in bytes.
        unit: u64,
    },
    /// The file system of the rack's folder has too little room.
    #[error("--memory {}: {room}: {}{}", ByteSize(*bytes), room.fix(room.missing()), or_less(*most))]
    NoRoom {
        /// Requested bytes.
        bytes: u64,
        /// The room on the file system, with the claims of all racks' files.
        room: Room,
        /// Bytes of memory for which there is room; 0 if less memory would not help.
        most: u64,
    },
    /// No hugetlbfs of this page size is mounted.
    #[error(
        "no hugetlbfs with pages of {0} is mounted where this user may write: mkdir -p /dev/hugepages-{0} && mount -t hugetlbfs -o pagesize={0},uid=$(id -u),mode=0700 none /dev/hugepages-{0}"
    )]
    NoHugeMount(HugePage),
    /// The file is not on a hugetlbfs of the requested page size.
    #[error(
        "{folder} is no hugetlbfs with pages of {page}: mount one there, or choose another --memory-kind"
    )]
    NotHugetlbfs {
        /// The path of the file.
        folder: PathBuf,
        /// The requested page size.
        page: HugePage,
    },
    /// The kernel has too few huge pages.
    #[error(
        "huge:{page} needs {needed} huge pages, {available} of {total} can be had: reserve them with `echo {} > {}` (early after boot, when memory is not in pieces), or choose another --memory-kind",
        total + (needed - available), page.pool_file()
    )]
    TooFewHugePages {
        /// The page size.
        page: HugePage,
        /// Pages needed.
        needed: u64,
        /// Pages that can be allocated.
        available: u64,
        /// Pages in the kernel's pool.
        total: u64,
    },
    /// A NUMA node has too few huge pages.
    #[error(
        "huge:{page} on NUMA node {node} needs {needed} huge pages, {free} are free there: reserve them with `echo {} > {}`, or choose another --frames-node",
        needed, page.node_pool_file(*node)
    )]
    TooFewHugePagesOfNode {
        /// The node.
        node: u32,
        /// The page size.
        page: HugePage,
        /// Pages needed.
        needed: u64,
        /// Pages of the node that are free.
        free: u64,
    },
    /// The path of the rack's folder is too long for a file name on a hugetlbfs.
    #[error("{0} is too long: huge pages need a --dir of at most 150 bytes")]
    LongPath(PathBuf),
    /// The NUMA node does not exist or has no memory.
    #[error(
        "there is no NUMA node {node} with memory, there are {}: choose one of them, see `rackpool doctor`",
        list_text(there)
    )]
    NoNode {
        /// The requested node.
        node: u32,
        /// The nodes with memory.
        there: Vec<u32>,
    },
    /// The NUMA node has too little free memory.
    #[error(
        "NUMA node {node} has {} free, {} are needed: ask for less memory, or end what uses that node's",
        ByteSize(*free), ByteSize(*needed)
    )]
    NodeFull {
        /// The requested node.
        node: u32,
        /// Free bytes of the node.
        free: u64,
        /// Bytes that must be allocated.
        needed: u64,
    },
    /// A page is on another node than requested.
    #[error(
        "the page at {offset} lies on NUMA node {found} instead of {wanted}: choose {option}{found}, or remove the rack's folder and let the daemon use node {wanted} (its cpuset's `cpuset.mems` must have it)"
    )]
    Elsewhere {
        /// The option that chose the node, up to the node's number.
        option: &'static str,
        /// Offset of the page in the memory.
        offset: u64,
        /// The page's node.
        found: u32,
        /// The requested node.
        wanted: u32,
    },
    /// The path is not a dax device.
    #[error(
        "{path} is no dax device ({why}): name one of /dev/dax*; `daxctl reconfigure-device --mode=devdax` makes one of memory that the kernel manages"
    )]
    NotDax {
        /// The path.
        path: PathBuf,
        /// The reason.
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
    /// The dax device holds memory with another id.
    #[error(
        "{0} holds other memory than this rack's: it was used by another pool since; name the right device, or remove the rack's folder to start with an empty rack"
    )]
    DaxForeign(PathBuf),
    /// An access outside the memory: a bug of this program.
    #[error(transparent)]
    OutsideMapping(#[from] OutsideMapping),
}

fn or_less(most: u64) -> String {
    match most >> 20 {
        0 => String::new(),
        most => format!(", or ask for at most --memory {most}M"),
    }
}

/// Remedies for refusals that are possible with every kind of memory.
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
