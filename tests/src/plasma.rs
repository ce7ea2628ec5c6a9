//! A `rackpool-plasma` service for a test, and a client of it.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rackpool_plasma::protocol::reply::Place;
use rackpool_plasma::protocol::{
    FrameBuffer, FrameLimits, ObjectId, ObjectInfo, PlasmaError, Reply, Request,
};
use rackpool_testing::wait::{TIMEOUT, wait_for};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::client::program;
use crate::pool::TestPool;
use crate::server_process::ServerProcess;

/// After this time a missing answer is an error.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(60);

/// The id that consists of one byte.
#[must_use]
pub const fn id(byte: u8) -> ObjectId {
    ObjectId([byte; ObjectId::BYTES])
}

/// A server of Plasma's protocol; killed when dropped.
#[derive(Debug)]
pub struct PlasmaService {
    process: ServerProcess,
    /// The socket on which it listens.
    pub socket: PathBuf,
}

impl PlasmaService {
    /// Starts a service of a rack with this capacity.
    #[must_use]
    pub fn start(pool: &TestPool, rack: u16, capacity: u64) -> Self {
        let socket = pool.dir().join(format!("plasma-{rack}.sock"));
        let rack = rack.to_string();
        let dir = pool.dir().display().to_string();
        Self::start_with(socket, capacity, &["--dir", &dir, "--rack", &rack])
    }

    /// Starts a service with these options.
    #[must_use]
    pub fn start_with(socket: PathBuf, capacity: u64, options: &[&str]) -> Self {
        let mut command = vec![
            program("rackpool-plasma").display().to_string(),
            "-s".into(),
            socket.display().to_string(),
            "-m".into(),
            capacity.to_string(),
            "--stop-with-stdin".into(),
        ];
        command.extend(options.iter().map(|option| (*option).to_owned()));
        let service = Self { process: ServerProcess::start(command), socket };
        drop(service.client());
        service
    }

    /// Connects, once the service listens.
    #[must_use]
    pub fn client(&self) -> PlasmaClient {
        wait_for("the service answers", TIMEOUT, || {
            let mut client = PlasmaClient::connect(&self.socket).ok()?;
            client.try_ask(&Request::Connect).ok()?;
            Some(client)
        })
    }

    /// The process.
    pub const fn process(&mut self) -> &mut Child {
        self.process.process()
    }

    /// Kills the service as `kill -9` does.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts a killed service again.
    pub fn restart(&mut self) {
        self.process.restart();
        drop(self.client());
    }
}

/// A client that waits for each reply. It reads and writes the file of the service instead of
/// mapping it.
#[derive(Debug)]
pub struct PlasmaClient {
    stream: UnixStream,
    input: FrameBuffer,
    file: Option<File>,
}

impl PlasmaClient {
    /// Connects to the service at a socket.
    ///
    /// # Errors
    /// When no service listens there.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        Ok(Self { stream, input: FrameBuffer::default(), file: None })
    }

    /// Sends bytes unchanged.
    ///
    /// # Errors
    /// When the service is gone.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a request that is not replied to, or whose reply is waited for later.
    ///
    /// # Errors
    /// When the service is gone.
    pub fn tell(&mut self, request: &Request<'_>) -> io::Result<()> {
        self.send(&request.encode().ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// When the service is gone.
    pub fn try_ask(&mut self, request: &Request<'_>) -> io::Result<Reply> {
        self.tell(request)?;
        self.reply()
    }

    /// As [`Self::try_ask`], for tests in which no request may fail.
    #[track_caller]
    pub fn ask(&mut self, request: &Request<'_>) -> Reply {
        self.try_ask(request).expect("a service that answers")
    }

    /// Waits for the next reply, and for the descriptor that follows the first one with a place.
    ///
    /// # Errors
    /// When the service is gone, or sends no reply.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let limits = FrameLimits { bytes: 1 << 30, data_bytes: 1 << 30 };
        let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let (reply, length) = loop {
            let frame = self.input.first(&limits).map_err(|error| broken(&error.to_string()))?;
            if let Some(frame) = frame {
                let reply = Reply::read(frame).map_err(|error| broken(&error.to_string()))?;
                break (reply, frame.body.len());
            }
            // The byte that comes with the descriptor must not be read with the frame.
            let needed = match self.input.unconsumed() {
                header if header.len() < 24 => 24 - header.len(),
                frame => {
                    let length = frame[16..].first_chunk().copied().unwrap_or_default();
                    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
                    (24 + length).saturating_sub(frame.len())
                }
            };
            let mut bytes = vec![0; needed.min(1 << 20)];
            self.stream.read_exact(&mut bytes)?;
            self.input.push(&bytes);
        };
        self.input.consume_frame(length);
        if reply.has_place() && self.file.is_none() {
            let file = receive_descriptor(&self.stream)?;
            self.file = Some(file.ok_or_else(|| broken("a place without a descriptor"))?.into());
        }
        Ok(reply)
    }

    /// Begins an object.
    ///
    /// # Errors
    /// What the service says.
    #[track_caller]
    pub fn create(&mut self, id: ObjectId, data: u64) -> Result<Place, PlasmaError> {
        match self.ask(&Request::Create { id, evicts: true, data, metadata: 0, device: 0 }) {
            Reply::Create { place, .. } => place,
            reply => panic!("{reply:?} replies to no create"),
        }
    }

    /// Seals an object.
    #[track_caller]
    pub fn seal(&mut self, id: ObjectId) -> PlasmaError {
        match self.ask(&Request::Seal { id, digest: [0; 8] }) {
            Reply::Seal { error, .. } => error,
            reply => panic!("{reply:?} replies to no seal"),
        }
    }

    /// Creates, writes and seals an object, which this client then uses.
    #[track_caller]
    pub fn put(&mut self, id: ObjectId, bytes: &[u8]) {
        let place = self.create(id, bytes.len() as u64).expect("room for an object");
        self.write(place, bytes);
        assert_eq!(self.seal(id), PlasmaError::Ok);
    }

    /// Writes the data of an object.
    pub fn write(&self, place: Place, bytes: &[u8]) {
        let file = self.file.as_ref().expect("a descriptor");
        file.write_all_at(bytes, place.offset).expect("a file that can be written");
    }

    /// Gets the data of an object; `None` if it is absent after the timeout.
    #[track_caller]
    pub fn get(&mut self, id: ObjectId, timeout_ms: i64) -> Option<Vec<u8>> {
        let reply = self.ask(&Request::Get { ids: vec![id], timeout_ms });
        self.data(&reply)
    }

    /// The data of the only object in the reply to a get.
    #[must_use]
    pub fn data(&self, reply: &Reply) -> Option<Vec<u8>> {
        let Reply::Get { objects, .. } = reply else { panic!("{reply:?} replies to no get") };
        let (_, place) = objects.first().copied().expect("an object");
        let place = place?;
        let mut bytes = vec![0; usize::try_from(place.size.data).expect("an object that fits")];
        let file = self.file.as_ref().expect("a descriptor");
        file.read_exact_at(&mut bytes, place.offset).expect("a file that can be read");
        Some(bytes)
    }

    /// Returns true if there is a sealed object of this id.
    #[track_caller]
    pub fn contains(&mut self, id: ObjectId) -> bool {
        let reply = self.ask(&Request::Contains { id });
        matches!(reply, Reply::Contains { is_contained: true, .. })
    }

    /// Evicts at least this many bytes; how many were evicted.
    #[track_caller]
    pub fn evict(&mut self, bytes: u64) -> u64 {
        match self.ask(&Request::Evict { bytes }) {
            Reply::Evict { bytes } => bytes,
            reply => panic!("{reply:?} replies to no evict"),
        }
    }

    /// Subscribes; the socket of the notifications.
    ///
    /// # Errors
    /// When the service is gone.
    pub fn subscribe(&mut self) -> io::Result<UnixStream> {
        let (own, other) = UnixStream::pair()?;
        own.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        self.tell(&Request::Subscribe)?;
        let rights = [std::os::fd::AsFd::as_fd(&other)];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&rights)));
        sendmsg(&self.stream, &[io::IoSlice::new(&[0])], &mut ancillary, SendFlags::empty())?;
        Ok(own)
    }
}

/// The next notification.
///
/// # Errors
/// When the service is gone, or sends no notification.
pub fn notification(socket: &mut UnixStream) -> io::Result<ObjectInfo> {
    let mut length = [0; 8];
    socket.read_exact(&mut length)?;
    let mut body = vec![0; usize::try_from(u64::from_le_bytes(length)).unwrap_or_default()];
    socket.read_exact(&mut body)?;
    let infos = ObjectInfo::read_notification(&body).map_err(|_| io::ErrorKind::InvalidData)?;
    infos.first().copied().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn receive_descriptor(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
    let mut received = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    Ok(received.next())
}
