//! Requests to the metadata server.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use rackpool_access::{Credentials, explain, require_loopback, require_server_of_same_user};
use rackpool_model::{GlobalAddr, PageId, PageRange, RackId, RootUpdate};
use rackpool_output::UsageError;
use rackpool_wire::metadata::{DirectoryEntry, MetadataReply, MetadataRequest, PoolStatus, Tagged};
use rackpool_wire::{FrameReader, encode};
use rustls::{ClientConnection, StreamOwned};

use super::timeout::TIMEOUT;

/// The address of the metadata server, and the credentials of this command.
#[derive(Debug)]
pub struct MetadataServer {
    address: String,
    credentials: Option<Credentials>,
}

trait Duplex: Read + Write {}

impl<T: Read + Write> Duplex for T {}

/// A range of pages that have the same home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocatedPages {
    /// The pages.
    pub pages: PageRange,
    /// Their home.
    pub home: RackId,
}

impl MetadataServer {
    /// A metadata server on this host that requires no credentials.
    #[must_use]
    pub fn at(address: impl Into<String>) -> Self {
        Self { address: address.into(), credentials: None }
    }

    /// A metadata server. `credentials` is the folder of this command's credentials.
    ///
    /// # Errors
    /// If the credentials can't be used.
    pub fn new(address: String, credentials: Option<&Path>) -> anyhow::Result<Self> {
        let credentials = credentials.map(Credentials::load).transpose()?;
        Ok(Self { address, credentials })
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Requests the status of the pool.
    ///
    /// # Errors
    /// If the server can't be reached, or refuses.
    pub fn status(&self) -> anyhow::Result<PoolStatus> {
        match self.ask(MetadataRequest::Status)? {
            MetadataReply::Status(status) => Ok(status),
            MetadataReply::Refused(refusal) => bail!(refusal),
            other => bail!(
                "the metadata server gave an unexpected answer, {other:?}: use programs of one version"
            ),
        }
    }

    /// Requests a page's home. `None`: the pool has no such page, or the page is lost.
    ///
    /// # Errors
    /// If the server can't be reached, or refuses.
    pub fn locate(&self, page: PageId) -> anyhow::Result<Option<RackId>> {
        Ok(self.lookup(page)?.map(|found| found.home))
    }

    /// Requests a page's home, with the range of pages around it that have the same home.
    ///
    /// # Errors
    /// If the server can't be reached, or refuses.
    pub fn lookup(&self, page: PageId) -> anyhow::Result<Option<LocatedPages>> {
        match self.ask(MetadataRequest::Locate { page })? {
            MetadataReply::Located { pages, home } => Ok(Some(LocatedPages { pages, home })),
            MetadataReply::NoSuchPage | MetadataReply::PageLost => Ok(None),
            MetadataReply::Refused(refusal) => bail!(refusal),
            other => bail!(
                "the metadata server gave an unexpected answer, {other:?}: use programs of one version"
            ),
        }
    }

    /// Requests the directory entry of a page. `None`: the pool has no such page.
    ///
    /// # Errors
    /// If the server can't be reached, or refuses.
    pub fn explain(&self, page: PageId) -> anyhow::Result<Option<DirectoryEntry>> {
        match self.ask(MetadataRequest::Explain { page })? {
            MetadataReply::Explained(entry) => Ok(Some(entry)),
            MetadataReply::NoSuchPage => Ok(None),
            MetadataReply::Refused(refusal) => bail!(refusal),
            other => bail!(
                "the metadata server gave an unexpected answer, {other:?}: use programs of one version"
            ),
        }
    }

    /// Sets a root to `new` if it is `expected`. Returns the root's value afterwards, and whether
    /// this call set it.
    ///
    /// # Errors
    /// If the server can't be reached, or refuses, as it does with an operator's credentials.
    pub fn put_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> anyhow::Result<RootUpdate> {
        match self.ask(MetadataRequest::PutRoot { name: name.into(), expected, new })? {
            MetadataReply::Root { addr, changed } => Ok(RootUpdate { addr, changed }),
            MetadataReply::Refused(refusal) => bail!(refusal),
            other => bail!(
                "the metadata server gave an unexpected answer, {other:?}: use programs of one version"
            ),
        }
    }

    fn ask(&self, message: MetadataRequest) -> anyhow::Result<MetadataReply> {
        let mut stream = self.connect()?;
        let broken =
            |error| anyhow!("the metadata server at {}: {}", self.address, explain(&error));
        stream.write_all(&encode(&Tagged { tag: 1, message })?).map_err(broken)?;
        stream.flush().map_err(broken)?;
        let mut frames = FrameReader::new();
        loop {
            if let Some(Tagged { message, .. }) = frames.next()? {
                return Ok(message);
            }
            let mut bytes = [0; 16 << 10];
            match stream.read(&mut bytes).map_err(broken)? {
                0 => bail!("the metadata server at {} closed the connection", self.address),
                count => frames.extend(&bytes[..count]),
            }
        }
    }

    fn connect(&self) -> anyhow::Result<Box<dyn Duplex>> {
        let address = &self.address;
        let found: Vec<_> = address
            .to_socket_addrs()
            .with_context(|| {
                format!("--metadata {address} does not resolve: give HOST:PORT or ADDRESS:PORT")
            })?
            .collect();
        for address in &found {
            require_loopback("--metadata", *address, self.credentials.as_ref())
                .map_err(UsageError::new)?;
        }
        let connect = |address| TcpStream::connect_timeout(address, TIMEOUT);
        let stream =
            found.iter().map(connect).reduce(Result::or).with_context(|| address.clone())?;
        let stream =
            stream.with_context(|| format!("no metadata server listens on {address}: start it, or give its address with --metadata"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(match &self.credentials {
            None => {
                require_server_of_same_user(stream.local_addr()?, stream.peer_addr()?)?;
                Box::new(stream)
            }
            Some(credentials) => {
                let session =
                    ClientConnection::new(credentials.client()?, credentials.server_name()?)?;
                Box::new(StreamOwned::new(session, stream))
            }
        })
    }
}
