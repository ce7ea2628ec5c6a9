//! Passing file descriptors over a Unix socket.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Sends the bytes; the descriptors travel with the first of them.
pub(crate) async fn send(
    stream: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        stream.writable().await?;
        let result = stream.try_io(Interest::WRITABLE, || {
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let rest = [IoSlice::new(&bytes[sent..])];
            Ok(sendmsg(stream, &rest, &mut ancillary, SendFlags::NOSIGNAL)?)
        });
        match result {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
