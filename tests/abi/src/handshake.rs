//! The initiator's side of the handshake of the verbs fabric, written after
//! `docs/design/fabric.md` and `docs/design/verbs.md`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rackpool_fabric::{Role, Transcript};
use rackpool_model::FabricKey;

const MAGIC: &[u8; 8] = b"rackverb";
const VERSION: u32 = 2;
const START_BYTES: usize = 20;
const MOST_BODY: usize = 1024;
const TIMEOUT: Duration = Duration::from_mins(1);

const HELLO: u32 = 1;
const REFUSAL: u32 = 2;
const PROOF: u32 = 3;
const OFFER: u32 = 4;
const READY: u32 = 5;
const GOODBYE: u32 = 6;
/// Bytes of a proof.
const PROOF_BYTES: usize = 32;

/// Memory that the other side may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first address in the process that offers it.
    pub address: u64,
    /// Its bytes.
    pub len: u64,
    /// Its remote key.
    pub key: u32,
}

/// A side's queue pair, and the memory that can be accessed through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairEnd {
    /// Queue pair number.
    pub number: u32,
    /// First packet sequence number.
    pub psn: u32,
    /// LID of the port.
    pub lid: u16,
    /// 1 to 5 for 256 to 4096 B.
    pub mtu: u8,
    /// Reads that the side answers at once.
    pub reads_answered: u8,
    /// GID of the port.
    pub gid: [u8; 16],
    /// Receives large messages.
    pub slots: Window,
    /// The exported regions.
    pub exports: Vec<Window>,
}

/// A connection to a rack, which has proved that it has the key.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    key: FabricKey,
    own: Vec<u8>,
    theirs: Vec<u8>,
}

impl Connection {
    /// Connects as this rack: hellos and proofs.
    ///
    /// # Errors
    /// When the network fails, and when the rack breaks the protocol, lacks the key, or refuses.
    pub fn open(address: SocketAddr, rack: u16, key: &FabricKey) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let mut own = [0; 48];
        own[..2].copy_from_slice(&rack.to_le_bytes());
        // It has a key; its incarnation is 1.
        (own[2], own[8]) = (1, 1);
        std::fs::File::open("/dev/urandom")?.read_exact(&mut own[16..])?;
        let own = packet(HELLO, &own);
        let mut connection = Self { socket, key: key.clone(), own, theirs: Vec::new() };
        connection.socket.write_all(&connection.own)?;
        connection.theirs = packet(HELLO, &connection.receive(HELLO)?);
        let proof = connection.receive(PROOF)?;
        connection.check(&[], &proof)?;
        connection.send(PROOF, &connection.proof(&[]))?;
        Ok(connection)
    }

    /// Sends this side's end, and receives the rack's.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn exchange(&mut self, own: &PairEnd) -> io::Result<PairEnd> {
        let content = own.encode();
        self.send(OFFER, &[&self.proof(&content)[..], &content].concat())?;
        let offer = self.receive(OFFER)?;
        let Some((proof, content)) = offer.split_at_checked(PROOF_BYTES) else {
            return Err(broken("its offer is too short"));
        };
        self.check(content, proof)?;
        PairEnd::decode(content).ok_or_else(|| broken("its pair is malformed"))
    }

    fn transcript<'a>(&'a self, content: &'a [u8]) -> Transcript<'a> {
        let (initiator, acceptor) = (&self.own, &self.theirs);
        Transcript { protocol: "rackpool verbs", initiator, acceptor, content }
    }

    fn proof(&self, content: &[u8]) -> [u8; PROOF_BYTES] {
        self.transcript(content).proof(Some(&self.key), Role::Initiator)
    }

    fn check(&self, content: &[u8], proof: &[u8]) -> io::Result<()> {
        let proof = proof.try_into().map_err(|_| broken("its proof has another length"))?;
        if self.transcript(content).accepts(Some(&self.key), Role::Acceptor, &proof) {
            return Ok(());
        }
        Err(broken("it lacks the key"))
    }

    /// Tells the rack that this side's queue pair is connected.
    ///
    /// # Errors
    /// When the network fails.
    pub fn ready(&mut self) -> io::Result<()> {
        self.send(READY, &[])
    }

    /// Tells the rack that this side ends the connection.
    ///
    /// # Errors
    /// When the network fails.
    pub fn goodbye(mut self) -> io::Result<()> {
        self.send(GOODBYE, &[])
    }

    fn send(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        self.socket.write_all(&packet(kind, body))
    }

    /// The body of the next packet, which must be of this kind.
    fn receive(&mut self, kind: u32) -> io::Result<Vec<u8>> {
        let mut start = [0; START_BYTES];
        self.socket.read_exact(&mut start)?;
        let mut reader = Reader(&start);
        let magic = reader.take::<8>();
        let numbers = [reader.u32(), reader.u32(), reader.u32()];
        let (Some(magic), [Some(found), Some(VERSION), Some(len)]) = (magic, numbers) else {
            return Err(broken("another version"));
        };
        let len = len as usize;
        if &magic != MAGIC || len > MOST_BODY {
            return Err(broken("another protocol"));
        }
        let mut body = vec![0; len];
        self.socket.read_exact(&mut body)?;
        match found {
            found if found == kind => Ok(body),
            REFUSAL => Err(broken(&String::from_utf8_lossy(&body))),
            other => Err(broken(&format!("a packet of kind {other}, not {kind}"))),
        }
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn packet(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).expect("a short body");
    let numbers = [kind, VERSION, len].map(u32::to_le_bytes).concat();
    [&MAGIC[..], &numbers, body].concat()
}

impl PairEnd {
    fn encode(&self) -> Vec<u8> {
        let mut body = [self.number, self.psn].map(u32::to_le_bytes).concat();
        body.extend(self.lid.to_le_bytes());
        body.extend([self.mtu, self.reads_answered]);
        let count = u32::try_from(self.exports.len()).expect("few exports");
        body.extend(count.to_le_bytes());
        body.extend(self.gid);
        for window in std::iter::once(&self.slots).chain(&self.exports) {
            body.extend([window.address, window.len].map(u64::to_le_bytes).concat());
            body.extend([window.key, 0].map(u32::to_le_bytes).concat());
        }
        body
    }

    /// `None` if the bytes are malformed.
    fn decode(body: &[u8]) -> Option<Self> {
        let mut reader = Reader(body);
        let (number, psn) = (reader.u32()?, reader.u32()?);
        let lid = u16::from_le_bytes(reader.take()?);
        let [mtu, reads_answered] = reader.take()?;
        let count = reader.u32()?;
        let gid = reader.take()?;
        let slots = reader.window()?;
        let exports = (0..count).map(|_| reader.window()).collect::<Option<Vec<_>>>()?;
        reader.0.is_empty().then_some(Self {
            number,
            psn,
            lid,
            mtu,
            reads_answered,
            gid,
            slots,
            exports,
        })
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn window(&mut self) -> Option<Window> {
        let (address, len, key) = (self.u64()?, self.u64()?, self.u32()?);
        (self.u32()? == 0).then_some(Window { address, len, key })
    }
}
