use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::FabricError;
use crate::tcp::hello::Packet;

/// A connection during its handshake.
pub(super) struct Greeting {
    pub(super) socket: TcpStream,
    /// The bytes of the next packet received so far.
    got: Vec<u8>,
}

/// The result of a receive.
pub(super) enum Received {
    Packet(Vec<u8>),
    /// The packet is not complete yet.
    Nothing,
    End,
}

impl Greeting {
    pub(super) const fn new(socket: TcpStream) -> Self {
        Self { socket, got: Vec::new() }
    }

    /// Receives the next packet and no byte beyond it: the following bytes belong to the channel.
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

    /// Sends bytes that always fit into the send buffer of a peer that follows the protocol; fails
    /// if they do not fit.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.socket.write(bytes) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(ErrorKind::WouldBlock.into()),
            Err(error) => Err(error),
        }
    }
}
