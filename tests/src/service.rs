//! A `rackpool-kv` service for a test, Redis for comparison, and a connection to either.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::client::program;
use crate::pool::TestPool;
use crate::server_process::ServerProcess;
use rackpool_testing::wait::{TIMEOUT, wait_for};

/// A server of the Redis protocol on a Unix socket; killed when dropped.
#[derive(Debug)]
pub struct Service {
    process: ServerProcess,
    /// The socket on which it listens.
    pub socket: PathBuf,
}

impl Service {
    /// Starts a service of a rack, with additional options.
    #[must_use]
    pub fn start(pool: &TestPool, rack: u16, options: &[&str]) -> Self {
        let socket = pool.dir().join(format!("kv-{rack}.sock"));
        let mut command = vec![
            program("rackpool-kv").display().to_string(),
            "--dir".into(),
            pool.dir().display().to_string(),
            "--rack".into(),
            rack.to_string(),
            "--unix".into(),
            socket.display().to_string(),
            "--stop-with-stdin".into(),
        ];
        command.extend(options.iter().map(|option| (*option).to_owned()));
        Self::spawn(command, socket)
    }

    /// Starts a Redis without persistence; `None` when Redis is not installed.
    #[must_use]
    pub fn redis(folder: &Path) -> Option<Self> {
        let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
        found.ok().filter(std::process::ExitStatus::success)?;
        let socket = folder.join("redis.sock");
        let dir = folder.display().to_string();
        let path = socket.display().to_string();
        let words =
            ["redis-server", "--port", "0", "--unixsocket", &path, "--save", "", "--dir", &dir];
        Some(Self::spawn(words.map(str::to_owned).into(), socket))
    }

    fn spawn(command: Vec<String>, socket: PathBuf) -> Self {
        let service = Self { process: ServerProcess::start(command), socket };
        service.wait_until_served();
        service
    }

    fn wait_until_served(&self) {
        wait_for("the service answers", TIMEOUT, || {
            let mut wire = Wire::try_open(&self.socket).ok()?;
            wire.try_ask(&["PING"]).ok()
        });
    }

    /// The server's process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The server's resident memory in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()));
        let status = status.expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.expect("its memory") << 10
    }

    /// The TCP port of a service that was started with `--listen 127.0.0.1:0`.
    #[must_use]
    pub fn port(&self) -> u16 {
        let Answer::Bulk(info) = self.wire().ask(&["INFO", "server"]) else { panic!("no INFO") };
        let info = String::from_utf8_lossy(&info).into_owned();
        let port =
            info.lines().find_map(|line| line.strip_prefix("tcp_port:")?.trim().parse().ok());
        port.expect("a port")
    }

    /// Kills the server as `kill -9` does.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Returns true once the server has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.process().try_wait().expect("a process").is_some()
    }

    /// Closes the server's input, at which it ends, and waits until it has ended.
    pub fn stop(&mut self) {
        let process = self.process.process();
        drop(process.stdin.take());
        process.wait().expect("a process that ends");
    }

    /// Starts the server again.
    pub fn restart(&mut self) {
        self.process.restart();
        self.wait_until_served();
    }

    /// Opens a connection.
    #[must_use]
    pub fn wire(&self) -> Wire {
        Wire::try_open(&self.socket).expect("a service that listens")
    }
}

/// After this time a missing answer is an error.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(60);

/// An answer of the server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// A simple string such as `+OK`.
    Simple(String),
    /// An error.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// Null.
    Null,
    /// An array; for a map, keys and values in turn.
    Array(Vec<Self>),
}

impl Answer {
    /// The bulk string of this text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Bulk(text.as_bytes().to_vec())
    }

    /// The simple string `OK`.
    #[must_use]
    pub fn ok() -> Self {
        Self::Simple("OK".into())
    }
}

/// A connection that waits for each answer.
#[derive(Debug)]
pub struct Wire {
    reader: BufReader<Stream>,
}

/// The transport of a connection.
#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(into),
            Self::Tcp(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(from),
            Self::Tcp(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Wire {
    /// Connects.
    ///
    /// # Errors
    /// When no server listens on the socket.
    pub fn try_open(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
        Ok(Self::over(Stream::Unix(stream)))
    }

    /// Connects over TCP.
    ///
    /// # Errors
    /// When no server listens at the address.
    pub fn try_connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self::over(Stream::Tcp(stream)))
    }

    fn over(stream: Stream) -> Self {
        // A small buffer: a test may open ten thousand connections.
        Self { reader: BufReader::with_capacity(512, stream) }
    }

    /// Shuts the sending direction down.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn shut(&mut self) -> io::Result<()> {
        match self.reader.get_ref() {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Sends bytes unchanged.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn request<A: AsRef<[u8]>>(&mut self, words: &[A]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.as_ref();
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.send(&bytes)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn try_ask<A: AsRef<[u8]>>(&mut self, words: &[A]) -> io::Result<Answer> {
        self.request(words)?;
        self.answer()
    }

    /// As [`Self::try_ask`], for tests in which no request may fail.
    #[track_caller]
    pub fn ask<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Answer {
        self.try_ask(words).expect("a service that answers")
    }

    /// Returns true once part of an answer has arrived.
    #[must_use]
    pub fn has_come(&mut self) -> bool {
        let set = |stream: &Stream, nonblocking| match stream {
            Stream::Unix(stream) => stream.set_nonblocking(nonblocking),
            Stream::Tcp(stream) => stream.set_nonblocking(nonblocking),
        };
        set(self.reader.get_ref(), true).expect("a socket");
        let found = self.reader.fill_buf().map(|_| ());
        set(self.reader.get_ref(), false).expect("a socket");
        match found {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => panic!("a connection that ended: {error}"),
        }
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// When the other end is gone, or sends a malformed answer.
    pub fn answer(&mut self) -> io::Result<Answer> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line)?;
        let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let line = line.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let (kind, rest) = line.split_first().ok_or_else(|| broken("an empty line"))?;
        let text = String::from_utf8_lossy(rest).into_owned();
        let number = || text.parse::<i64>().map_err(|_| broken("no number"));
        Ok(match kind {
            b'+' => Answer::Simple(text),
            b'-' => Answer::Error(text),
            b':' => Answer::Integer(number()?),
            b'_' => Answer::Null,
            b',' | b'#' => Answer::Bulk(rest.to_vec()),
            b'$' | b'=' => match usize::try_from(number()?) {
                Ok(len) => {
                    let mut bytes = vec![0; len + 2];
                    self.reader.read_exact(&mut bytes)?;
                    bytes.truncate(len);
                    Answer::Bulk(bytes)
                }
                Err(_) => Answer::Null,
            },
            b'*' | b'~' | b'%' => match usize::try_from(number()?) {
                Ok(len) => {
                    let len = if *kind == b'%' { len * 2 } else { len };
                    Answer::Array((0..len).map(|_| self.answer()).collect::<io::Result<_>>()?)
                }
                Err(_) => Answer::Null,
            },
            _ => return Err(broken("an unknown kind of answer")),
        })
    }
}
