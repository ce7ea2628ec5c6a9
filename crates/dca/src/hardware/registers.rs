use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use rackpool_shm::host::{HostFiles, IIO_LLC_WAYS};

use super::HardwareError;

/// Access to the register of a processor's socket.
pub trait Registers {
    /// Reads the register through a processor.
    fn read(&mut self, cpu: u32) -> Result<u64, HardwareError>;

    /// Writes the register through a processor.
    fn write(&mut self, cpu: u32, value: u64) -> Result<(), HardwareError>;
}

/// The registers behind `/dev/cpu/N/msr`.
#[derive(Clone, Debug)]
pub struct MsrFiles(pub HostFiles);

impl Registers for MsrFiles {
    fn read(&mut self, cpu: u32) -> Result<u64, HardwareError> {
        let path = self.0.dev(format!("cpu/{cpu}/msr"));
        self.0.device_ways_register(cpu).map_err(|source| HardwareError::Register {
            verb: "read",
            path,
            source,
        })
    }

    fn write(&mut self, cpu: u32, value: u64) -> Result<(), HardwareError> {
        let path = self.0.dev(format!("cpu/{cpu}/msr"));
        OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.write_all_at(&value.to_le_bytes(), IIO_LLC_WAYS))
            .map_err(|source| HardwareError::Register { verb: "write", path, source })
    }
}
