//! How the bytes of an object come along a chain: the racks that bring it, of which each reads the
//! replica of the one that joined before it, though that rack is still filling it. So the rack of
//! the object serves one of them, however many there are: see
//! `docs/design/object-chains.md`.
//!
//! The bytes of a replica are a hint. Nothing keeps its memory while another rack reads it; the
//! checksum decides whether they are the object's.

/// A transfer into a replica, whose program counts the bytes in the replica's head as they come.
pub(crate) trait Transfer {
    type Error;

    /// Waits until the replica at the source has bytes that were not brought yet, brings some of
    /// them, and counts them. Returns false if the source is of no use any more: its replica is
    /// gone or does not grow, or could not be read. There may be no source from the start.
    fn follow(&mut self) -> Result<bool, Self::Error>;

    /// Whether bytes came from a replica.
    fn has_followed(&self) -> bool;

    /// Brings the bytes that are not there yet from the object itself, and counts them.
    fn finish(&mut self) -> Result<(), Self::Error>;

    /// Whether the bytes have the checksum of the object.
    fn is_right(&self) -> bool;

    /// Counts no bytes, as at first. There is no source any more.
    fn restart(&mut self) -> Result<(), Self::Error>;
}

/// Brings all bytes of an object. Returns whether they have its checksum.
pub(crate) fn bring<T: Transfer>(transfer: &mut T) -> Result<bool, T::Error> {
    while transfer.follow()? {}
    transfer.finish()?;
    if !transfer.is_right() && transfer.has_followed() {
        transfer.restart()?;
        transfer.finish()?;
    }
    Ok(transfer.is_right())
}
