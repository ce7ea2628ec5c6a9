//! A connection to a server that speaks RESP2: one request, one answer.

use std::io::{self, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::answer::{Answer, answer};
use super::error::RespError;
use crate::target::{Address, Server};

const TIMEOUT: Duration = Duration::from_secs(30);

trait Stream: Read + Write {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// A connection to a server.
pub(super) struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    request: Vec<u8>,
}

impl Connection {
    pub(super) fn open(server: &Server) -> Result<Self, RespError> {
        let failed = |cause| RespError::Connect { server: server.clone(), cause };
        let stream = connect(&server.address).map_err(failed)?;
        let mut connection = Self { stream: BufReader::new(stream), request: Vec::new() };
        if let Some(password) = &server.password {
            connection.ask(&[b"AUTH", password.as_bytes()])?;
        }
        Ok(connection)
    }

    /// Sends a command and waits for its answer.
    pub(super) fn ask(&mut self, words: &[&[u8]]) -> Result<Answer, RespError> {
        self.request.clear();
        // Writing to memory can't fail.
        let _ = write!(self.request, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.request, "${}\r\n", word.len());
            self.request.extend_from_slice(word);
            self.request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&self.request)?;
        answer(&mut self.stream)
    }
}

fn connect(address: &Address) -> io::Result<Box<dyn Stream>> {
    match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            Ok(Box::new(stream))
        }
        Address::Tcp(address) => {
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            for address in address.to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, TIMEOUT) {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        stream.set_read_timeout(Some(TIMEOUT))?;
                        return Ok(Box::new(stream));
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}
