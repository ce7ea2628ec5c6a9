use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::FabricError;
use crate::tcp::hello::Packet;

/// A connection in the middle of a handshake.
pub(super) struct Greeting {
    pub(super) socket: TcpStream,
    /// What has come of the next packet.
    got: Vec<u8>,
}

/// What a socket had.
pub(super) enum Received {
    Packet(Vec<u8>),
    /// Not yet a whole packet.
    Nothing,
    End,
}

impl Greeting {
    pub(super) const fn new(socket: TcpStream) -> Self {
        Self { socket, got: Vec::new() }
    }

    /// Receives the next packet and not a byte more: what follows belongs to the channel.
    pub(super) fn receive(&mut self) -> Result<Received, FabricError> {
        loop {
            let have = self.got.len();
            let wanted = Packet::len(&self.got)?;
            if wanted == have {
                return Ok(Received::Packet(std::mem::take(&mut self.got)));
            }
            self.got.resize(wanted, 0);
            let result = self.socket.read(&mut self.got[have..]);
            self.got.truncate(have + result.as_ref().map_or(0, |read| *read));
            match result {
                Ok(0) => return Ok(Received::End),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Received::Nothing);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Ok(Received::End),
            }
        }
    }

    /// Sends what always fits into the socket of somebody who follows the protocol.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.socket.write(bytes) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(ErrorKind::WouldBlock.into()),
            Err(error) => Err(error),
        }
    }
}
