use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rackpool_shm::folder::FolderError;

use crate::Party;

/// Why access is refused, or credentials can't be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// An address that other hosts can reach was given without credentials.
    #[error(
        "{option} {address} is not on this host alone, which needs credentials: make them with `rackpool credentials init` and name a folder with --credentials; or use 127.0.0.1 or [::1]"
    )]
    NotLoopback {
        /// The option that gave the address.
        option: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// A process of another user of this host connected without credentials.
    #[error(
        "the process at {peer} belongs to user {user}, this one to user {own}: different users need credentials, make them with `rackpool credentials init` and name a folder with --credentials"
    )]
    OtherUser {
        /// The process's address.
        peer: SocketAddr,
        /// The user that the process belongs to.
        user: u32,
        /// The user of this process.
        own: u32,
    },
    /// A loopback connection that belongs to no process of this host.
    #[error(
        "no process is known at {peer}: it has ended, or this host does not show it, and then credentials are needed; make them with `rackpool credentials init` and name a folder with --credentials"
    )]
    NobodysConnection {
        /// The address.
        peer: SocketAddr,
    },
    /// The kernel's tables, which name the owners of sockets, can't be read.
    #[error(
        "can't read {table} to learn whose a connection is: {source}; mount /proc, or use --credentials"
    )]
    UnknownPeers {
        /// The kernel's table.
        table: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A file can't be read.
    #[error(
        "can't read {path}: {source}; --credentials takes the folder of one party as `rackpool credentials` makes them, with authority.crt, own.crt and own.key"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file or folder can't be written.
    #[error("can't write {path}: {source}; may this user write there?")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can replace files in the credentials' folder.
    #[error("the credentials are not safe: {0}")]
    Folder(#[from] FolderError),
    /// Other users can read a key.
    #[error(
        "{path} can be read by others (mode {mode:o}): chmod 600 {path}, and if others have been there, make new credentials"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file does not hold what it should.
    #[error(
        "{path} is damaged ({cause}): copy the folder again, or renew it with `rackpool credentials add --renew`"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// Key and certificate do not belong together.
    #[error(
        "own.key and own.crt in {folder} do not belong together: copy the folder again, or renew it with `rackpool credentials add --renew`"
    )]
    Mixed {
        /// Their folder.
        folder: PathBuf,
    },
    /// The certificate has expired, or is not valid yet.
    #[error(
        "{path} {cause}: look at this host's clock, or renew it with `rackpool credentials add --renew`"
    )]
    Time {
        /// The certificate.
        path: PathBuf,
        /// Expired, or not valid yet, and by how much.
        cause: String,
    },
    /// The authority beside the certificate did not sign it.
    #[error(
        "{path} was not signed by the authority.crt beside it: copy the whole folder from where `rackpool credentials` made it"
    )]
    Authority {
        /// The certificate.
        path: PathBuf,
    },
    /// The certificate names no party of a pool, or can't be used here.
    #[error(
        "{path} is no certificate of rackpool ({cause}): make one with `rackpool credentials add`"
    )]
    Foreign {
        /// The certificate.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// The credentials belong to another party.
    #[error(
        "{folder} has the credentials of {found}, those of {wanted} are needed: name another folder with --credentials"
    )]
    Party {
        /// The folder.
        folder: PathBuf,
        /// The party that they belong to.
        found: Party,
        /// The party whose credentials are needed.
        wanted: Party,
    },
    /// A file that must not be overwritten exists.
    #[error("{path} is there already: {advice}")]
    Exists {
        /// The file.
        path: PathBuf,
        /// What to do.
        advice: &'static str,
    },
    /// The TLS library refuses the credentials.
    #[error("TLS can't be set up with {folder}: {cause}")]
    Tls {
        /// The credentials' folder.
        folder: PathBuf,
        /// The library's error.
        cause: String,
    },
}

impl CredentialsError {
    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Unreadable { path, source }
    }

    pub(crate) fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Unwritable { path, source }
    }

    pub(crate) fn damaged(path: &Path, cause: &impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), cause: cause.to_string() }
    }
}
