use crate::{MemoryRegion, Operation, OutOfRange};

const BUFFER_BYTES: u32 = 4096;

/// Copies at most `budget` of the bytes that are left of an operation; returns how many.
///
/// Every step but the last ends at a multiple of 4 KiB of the remote region, so that aligned words
/// are moved whole by whichever region moves them whole.
pub(super) fn copy_piece(
    operation: &Operation,
    done: u32,
    budget: u32,
    local: &dyn MemoryRegion,
    remote: &dyn MemoryRegion,
) -> Result<u32, OutOfRange> {
    let transfer = operation.transfer();
    let mut buffer = [0; BUFFER_BYTES as usize];
    let mut copied = 0;
    while done + copied < transfer.len && copied < budget {
        let local_at = transfer.local_offset + u64::from(done + copied);
        let remote_at = transfer.remote_offset + u64::from(done + copied);
        let len = step(remote_at).min(transfer.len - done - copied);
        let bytes = &mut buffer[..len as usize];
        match operation {
            Operation::Read(_) => {
                remote.read(remote_at, bytes)?;
                local.write(local_at, bytes)?;
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

/// Bytes from here to the next multiple of the buffer's size.
fn step(remote_at: u64) -> u32 {
    let into = u32::try_from(remote_at % u64::from(BUFFER_BYTES)).unwrap_or(0);
    BUFFER_BYTES - into
}
