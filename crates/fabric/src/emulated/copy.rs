use crate::region::store_read;
use crate::{MemoryRegion, Operation, OutOfRange};

const BUFFER_BYTES: u32 = 4096;
/// Operations up to this length use a small buffer, which costs less to initialise.
const SMALL_BYTES: u32 = 256;

/// Copies the next bytes of an operation, after the first `done`, until `budget` bytes are copied
/// or the operation is complete. Returns the number of bytes copied, which may exceed `budget` by
/// part of a step.
///
/// Every step but the last ends at a multiple of 4 KiB of the remote region. Aligned words are thus
/// moved whole if both regions move them whole.
pub(super) fn copy_piece(
    operation: &Operation,
    done: u32,
    budget: u32,
    local: &dyn MemoryRegion,
    remote: &dyn MemoryRegion,
) -> Result<u32, OutOfRange> {
    if operation.transfer().len <= SMALL_BYTES {
        let mut buffer = [0; SMALL_BYTES as usize];
        return copy_through(&mut buffer, operation, done, budget, local, remote);
    }
    let mut buffer = [0; BUFFER_BYTES as usize];
    copy_through(&mut buffer, operation, done, budget, local, remote)
}

/// Does the work of [`copy_piece`] with a buffer that holds at least one step.
fn copy_through(
    buffer: &mut [u8],
    operation: &Operation,
    done: u32,
    budget: u32,
    local: &dyn MemoryRegion,
    remote: &dyn MemoryRegion,
) -> Result<u32, OutOfRange> {
    let transfer = operation.transfer();
    let mut copied = 0;
    while done + copied < transfer.len && copied < budget {
        let local_at = transfer.local_offset + u64::from(done + copied);
        let remote_at = transfer.remote_offset + u64::from(done + copied);
        let len = step(remote_at).min(transfer.len - done - copied);
        let bytes = &mut buffer[..len as usize];
        match operation {
            Operation::Read(_) => {
                remote.read(remote_at, bytes)?;
                store_read(transfer, local, local_at, bytes)?;
            }
            Operation::Write(_) => {
                local.read(local_at, bytes)?;
                remote.write(remote_at, bytes)?;
            }
        }
        copied += len;
    }
    Ok(copied)
}

/// Bytes from `remote_at` to the next multiple of the buffer's size.
fn step(remote_at: u64) -> u32 {
    let into = u32::try_from(remote_at % u64::from(BUFFER_BYTES)).unwrap_or(0);
    BUFFER_BYTES - into
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::region::BULK_BYTES;
    use crate::{RegionId, RemoteRegion, Transfer};

    /// A region that counts the bytes written to it, plain and bulk.
    #[derive(Default)]
    struct Counts {
        plain: AtomicU64,
        bulk: AtomicU64,
    }

    impl Counts {
        fn taken(&self) -> (u64, u64) {
            let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
            (take(&self.plain), take(&self.bulk))
        }
    }

    impl MemoryRegion for Counts {
        fn len(&self) -> u64 {
            1 << 20
        }

        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), OutOfRange> {
            Ok(())
        }

        fn write(&self, _: u64, from: &[u8]) -> Result<(), OutOfRange> {
            self.plain.fetch_add(from.len() as u64, Ordering::Relaxed);
            Ok(())
        }

        fn write_bulk(&self, _: u64, from: &[u8]) -> Result<(), OutOfRange> {
            self.bulk.fetch_add(from.len() as u64, Ordering::Relaxed);
            Ok(())
        }

        fn load(&self, _: u64) -> Result<u64, OutOfRange> {
            Ok(0)
        }

        fn store(&self, _: u64, _: u64) -> Result<(), OutOfRange> {
            Ok(())
        }

        fn compare_exchange(&self, _: u64, _: u64, _: u64) -> Result<u64, OutOfRange> {
            Ok(0)
        }

        fn full_fence(&self) {}
    }

    #[test]
    fn only_a_long_read_is_stored_as_bulk_and_all_of_it() {
        let (local, remote) = (Counts::default(), Counts::default());
        let transfer = |len| Transfer {
            local: RegionId(0),
            local_offset: 64,
            remote: RemoteRegion::FRAMES,
            remote_offset: 4000,
            len,
        };
        let copy = |operation: &Operation| {
            let len = operation.transfer().len;
            assert_eq!(copy_piece(operation, 0, len, &local, &remote).unwrap(), len);
        };
        let (long, short) = (BULK_BYTES, BULK_BYTES - 1);
        copy(&Operation::Read(transfer(long)));
        assert_eq!(local.taken(), (0, u64::from(long)));
        copy(&Operation::Read(transfer(short)));
        assert_eq!(local.taken(), (u64::from(short), 0));
        assert_eq!(remote.taken(), (0, 0), "it is only read");
        copy(&Operation::Write(transfer(long)));
        assert_eq!((local.taken(), remote.taken()), ((0, 0), (u64::from(long), 0)));
    }
}
