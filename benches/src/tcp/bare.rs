use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use super::{LARGE, LARGE_READS, MEMORY, ROUND_TRIPS, SMALL, gigabytes_per_second, receive, send};
use crate::measure::median;

/// A request whose answer has the same size; the other kind requests the large pieces.
const PING: u8 = 1;
const BULK: u8 = 2;

/// A socket whose other end only answers.
pub(super) struct Bare {
    socket: TcpStream,
    /// Filled piece by piece, as a reader's region is.
    memory: Vec<u8>,
}

impl Bare {
    /// The other end runs on the caller's core.
    pub(super) fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let (other, _) = listener.accept()?;
        for socket in [&socket, &other] {
            socket.set_nodelay(true)?;
        }
        other.set_nonblocking(true)?;
        socket.set_nonblocking(true)?;
        // The thread ends with its socket.
        std::thread::spawn(move || answer(&other));
        Ok(Self { socket, memory: memory(7) })
    }

    /// Median time of a ping-pong in microseconds.
    pub(super) fn round_trips(&mut self) -> anyhow::Result<f64> {
        let mut times = Vec::with_capacity(ROUND_TRIPS);
        let mut bytes = [PING; SMALL as usize];
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            send(&self.socket, &bytes)?;
            receive(&self.socket, &mut bytes)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        self.rest()?;
        Ok(median(times))
    }

    /// GB/s of a copy through the socket.
    pub(super) fn bandwidth(&mut self) -> anyhow::Result<f64> {
        let start = Instant::now();
        send(&self.socket, &[BULK; SMALL as usize])?;
        for read in 0..LARGE_READS {
            receive(&self.socket, &mut self.memory[piece(read)])?;
        }
        let rate = gigabytes_per_second(start, LARGE_READS);
        self.rest()?;
        Ok(rate)
    }

    /// Lets the other end sleep until the next request, so that it leaves its core to the fabric.
    fn rest(&self) -> anyhow::Result<()> {
        send(&self.socket, &[0; SMALL as usize])
    }
}

/// As many bytes as a region of the fabric, with every page populated.
#[expect(clippy::cast_possible_truncation, reason = "far below 4 GiB")]
fn memory(byte: u8) -> Vec<u8> {
    vec![byte; MEMORY as usize]
}

/// The place of a large read in the memory: the same as that of a read over the fabric.
const fn piece(read: u64) -> std::ops::Range<usize> {
    let start = (read * LARGE as u64 % MEMORY) as usize;
    start..start + LARGE as usize
}

fn answer(socket: &TcpStream) {
    let mut question = [0; SMALL as usize];
    let memory = memory(7);
    while receive(socket, &mut question).is_ok() {
        let answered = match question[0] {
            PING => send(socket, &question),
            BULK => (0..LARGE_READS).try_for_each(|read| send(socket, &memory[piece(read)])),
            _ => {
                // Sleeps until the next request.
                let waited = socket.set_nonblocking(false).and_then(|()| {
                    socket.peek(&mut [0])?;
                    socket.set_nonblocking(true)
                });
                waited.map_err(Into::into)
            }
        };
        if answered.is_err() {
            return;
        }
    }
}
