//! A metadata server in a separate process, and a plain client of it.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_access::Credentials;
use rackpool_model::{FabricKey, GlobalAddr, Incarnation, MemoryId, PageRange, RackId};
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_wire::metadata::{
    MetadataReply, MetadataRequest, PUSHED, PoolStatus, RackAnnouncement, Tagged,
};
use rackpool_wire::{FrameReader, encode};
use rustls::{ClientConnection, StreamOwned};

/// A running server; killed when dropped.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Returns the command that starts a server whose files are in `directory`.
    pub(crate) fn command(directory: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackpool-metaserver"));
        command.args(["--listen", "127.0.0.1:0", "--store"]).arg(directory.join("store"));
        command.arg("--address-file").arg(directory.join("address")).args(arguments);
        command.env("RUST_LOG", "debug").stdin(Stdio::null());
        command
    }

    pub(crate) fn start(directory: &Path, arguments: &[&str]) -> Self {
        Self::run(Self::command(directory, arguments), directory)
    }

    /// Runs a command that becomes a server, and waits until the server is ready.
    pub(crate) fn run(mut command: Command, directory: &Path) -> Self {
        let log = directory.join("log");
        let file = std::fs::File::create(&log).unwrap();
        let address = directory.join("address");
        // Left by a server that was killed.
        let _ = std::fs::remove_file(&address);
        let mut child = command.stderr(file).spawn().unwrap();
        let address = wait_for("start of the server", TIMEOUT, || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("{status}: {}", std::fs::read_to_string(&log).unwrap());
            }
            std::fs::read_to_string(&address).ok()
        });
        Self { child, log, address: address.trim().parse().unwrap() }
    }

    /// Runs a server that must not start. Returns its exit code and its output.
    pub(crate) fn fail(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
        let output = Self::command(directory, arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    pub(crate) fn connect(&self) -> Connection {
        Self::talk(TcpStream::connect(self.address).unwrap())
    }

    /// Connects from another address of this host.
    pub(crate) fn connect_from(&self, source: Ipv4Addr) -> Connection {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((source, 0))).unwrap();
        connect(&socket, &self.address).unwrap();
        Self::talk(socket.into())
    }

    fn talk(stream: TcpStream) -> Connection {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream, frames: FrameReader::new(), last_tag: 0, members: VecDeque::new() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_until(text, TIMEOUT, || self.log().contains(text));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// SIGKILL: the server finishes nothing.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn stop(mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        wait_for("end of the server", TIMEOUT, || self.child.try_wait().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection to the server.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    frames: FrameReader,
    last_tag: u64,
    members: VecDeque<MetadataReply>,
}

impl Connection {
    /// Sends a request and waits for its answer.
    pub(crate) fn ask(&mut self, request: MetadataRequest) -> MetadataReply {
        let tag = self.send(request).unwrap();
        loop {
            let answer = self.receive().unwrap();
            if let Tagged { tag: PUSHED, message: members @ MetadataReply::Members { .. } } = answer
            {
                self.members.push_back(members);
                continue;
            }
            assert_eq!(answer.tag, tag);
            return answer.message;
        }
    }

    /// Returns the oldest unread list of members that the server has pushed; waits for one.
    pub(crate) fn pushed(&mut self) -> MetadataReply {
        if let Some(members) = self.members.pop_front() {
            return members;
        }
        let told = self.receive().unwrap();
        assert_eq!(told.tag, PUSHED);
        told.message
    }

    pub(crate) fn send(&mut self, message: MetadataRequest) -> std::io::Result<u64> {
        self.last_tag += 1;
        let tag = self.last_tag;
        self.stream.write_all(&encode(&Tagged { tag, message }).unwrap())?;
        Ok(tag)
    }

    /// Returns the next answer; `None` when the connection has ended.
    pub(crate) fn receive(&mut self) -> Option<Tagged<MetadataReply>> {
        loop {
            if let Some(answer) = self.frames.next().unwrap() {
                return Some(answer);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.frames.extend(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn register(&mut self, rack: u16, memory: u128, incarnation: u64) -> PageRange {
        match self.ask(MetadataRequest::Register(announcement(rack, memory, incarnation))) {
            MetadataReply::Registered { pages, .. } => pages,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn heartbeat(&mut self, rack: u16, incarnation: u64, seen: u64) -> MetadataReply {
        self.ask(MetadataRequest::Heartbeat {
            rack: RackId(rack),
            incarnation: Incarnation(incarnation),
            free_frames: 5,
            seen_version: seen,
        })
    }

    pub(crate) fn get(&mut self, name: &str) -> Option<GlobalAddr> {
        match self.ask(MetadataRequest::GetRoot { name: name.into() }) {
            MetadataReply::Root { addr, changed: false } => addr,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn status(&mut self) -> PoolStatus {
        match self.ask(MetadataRequest::Status) {
            MetadataReply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }
}

/// A connection with credentials.
pub(crate) struct Tls {
    stream: StreamOwned<ClientConnection, TcpStream>,
    frames: FrameReader,
}

impl Tls {
    pub(crate) fn connect(server: &Server, credentials: &Credentials) -> Self {
        let socket = TcpStream::connect(server.address).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let name = credentials.server_name().unwrap();
        let session = ClientConnection::new(credentials.client().unwrap(), name).unwrap();
        Self { stream: StreamOwned::new(session, socket), frames: FrameReader::new() }
    }

    pub(crate) fn try_ask(&mut self, message: MetadataRequest) -> std::io::Result<MetadataReply> {
        self.stream.write_all(&encode(&Tagged { tag: 1, message }).unwrap())?;
        loop {
            if let Some(Tagged { message, .. }) = self.frames.next().unwrap() {
                return Ok(message);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => self.frames.extend(&bytes[..count]),
            }
        }
    }

    pub(crate) fn ask(&mut self, message: MetadataRequest) -> MetadataReply {
        self.try_ask(message).unwrap()
    }

    pub(crate) fn register(&mut self, rack: u16, incarnation: u64) -> FabricKey {
        let announced = announcement(rack, u128::from(rack) + 1, incarnation);
        match self.ask(MetadataRequest::Register(announced)) {
            MetadataReply::Registered { fabric_key: Some(key), .. } => key,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn announcement(rack: u16, memory: u128, incarnation: u64) -> RackAnnouncement {
    RackAnnouncement {
        rack: RackId(rack),
        memory: MemoryId(memory),
        incarnation: Incarnation(incarnation),
        frames: 100,
        page_bytes: 2 << 20,
        seen: None,
        control_path: format!("/run/rack-{rack}"),
        fabric_address: "tcp:127.0.0.1:1".into(),
    }
}

/// Returns a request that gives a name to an address, if the name has none.
pub(crate) fn put(name: &str, addr: u64) -> MetadataRequest {
    let new = Some(GlobalAddr::from_raw(addr));
    MetadataRequest::PutRoot { name: name.into(), expected: None, new }
}
