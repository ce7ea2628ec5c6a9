use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Draws cryptographically secure random bytes from the operating system.
///
/// # Errors
///
/// The error of the system call; `WouldBlock` if it gave too few bytes, which happens only before
/// the system has collected enough randomness.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let count = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if count == N { Ok(bytes) } else { Err(io::ErrorKind::WouldBlock.into()) }
}
