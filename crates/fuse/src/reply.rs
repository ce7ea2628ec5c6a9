//! Decoding of attributes to set; error numbers.

use fuser::Errno;
use rackpool_fs::{FsError, NewTime, SetAttr, Timestamp};

use crate::device::Fields;

/// Bits that say which attributes to set.
const MODE: u32 = 1;
const UID: u32 = 1 << 1;
const GID: u32 = 1 << 2;
const SIZE: u32 = 1 << 3;
const ATIME: u32 = 1 << 4;
const MTIME: u32 = 1 << 5;
const ATIME_NOW: u32 = 1 << 7;
const MTIME_NOW: u32 = 1 << 8;
const CTIME: u32 = 1 << 10;
/// Clear set-id bits: the owner changes, or a user without privileges truncates the file.
const KILL_SUIDGID: u32 = 1 << 11;
/// The fields of SETATTR that are used. The file handle and the lock owner are ignored.
const ANY: u32 = MODE | UID | GID | SIZE | ATIME | MTIME | ATIME_NOW | MTIME_NOW | CTIME;

/// valid u32 | zero u32 | handle u64 | size u64 | owner u64 | atime, mtime, ctime: seconds i64 |
/// nanoseconds u32 of the same | mode u32 | zero u32 | uid u32 | gid u32 | zero u32
pub(crate) fn set_attr(fields: &mut Fields<'_>) -> Result<SetAttr, Errno> {
    let valid = fields.u32()?;
    fields.skip(12)?;
    let size = fields.u64()?;
    fields.skip(8)?;
    let seconds = [fields.i64()?, fields.i64()?, fields.i64()?];
    let nanoseconds = [fields.u32()?, fields.u32()?, fields.u32()?];
    let mode = fields.u32()?;
    fields.skip(4)?;
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    let is_set = |bit: u32| valid & bit != 0;
    let time = |at: usize| Timestamp { seconds: seconds[at], nanoseconds: nanoseconds[at] };
    let new_time = |bit, now, at| match (is_set(bit), is_set(now)) {
        (false, _) => None,
        (true, true) => Some(NewTime::Now),
        (true, false) => Some(NewTime::At(time(at))),
    };
    Ok(SetAttr {
        mode: is_set(MODE).then_some(mode & 0o7777),
        uid: is_set(UID).then_some(uid),
        gid: is_set(GID).then_some(gid),
        size: is_set(SIZE).then_some(size),
        atime: new_time(ATIME, ATIME_NOW, 0),
        mtime: new_time(MTIME, MTIME_NOW, 1),
        ctime: is_set(CTIME).then(|| time(2)),
        // `chown` to nobody and no group arrives as a request that sets nothing.
        drops_privileges: is_set(KILL_SUIDGID) || !is_set(ANY),
    })
}

/// The error number of an error.
pub(crate) const fn error_number(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::NoSpace => Errno::ENOSPC,
        FsError::InvalidArgument => Errno::EINVAL,
        FsError::TooLarge => Errno::EFBIG,
        FsError::TooManyLinks => Errno::EMLINK,
        FsError::Permission => Errno::EPERM,
        FsError::NoAttribute => Errno::ENODATA,
        FsError::NoSuchOffset => Errno::ENXIO,
        FsError::AttributeTooLarge(_) => Errno::ENOSPC,
        FsError::Busy => Errno::EBUSY,
        FsError::NoLocks => Errno::ENOLCK,
        // Damage, pool failures, and kinds that this release does not know.
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_valid_is_set_and_times_before_1970_are_what_the_program_said() {
        let mut bytes = vec![0xff; 88];
        bytes[..4].copy_from_slice(&(MODE | SIZE | MTIME | ATIME | ATIME_NOW).to_le_bytes());
        bytes[16..24].copy_from_slice(&9_u64.to_le_bytes());
        bytes[40..48].copy_from_slice(&(-2_i64).to_le_bytes());
        bytes[60..64].copy_from_slice(&750_000_000_u32.to_le_bytes());
        let change = set_attr(&mut Fields::new(&bytes)).unwrap();
        let mtime = Timestamp { seconds: -2, nanoseconds: 750_000_000 };
        let expected = SetAttr {
            mode: Some(0o7777),
            size: Some(9),
            atime: Some(NewTime::Now),
            mtime: Some(NewTime::At(mtime)),
            ..SetAttr::default()
        };
        assert_eq!(change, expected);
        assert!(set_attr(&mut Fields::new(&bytes[..80])).is_err());
    }

    #[test]
    fn set_id_bits_go_when_the_kernel_says_so_or_nothing_is_set() {
        const HANDLE: u32 = 1 << 6;
        for (valid, drops) in [
            (UID | KILL_SUIDGID, true),
            (HANDLE, true),
            (0, true),
            (MODE, false),
            (SIZE | HANDLE, false),
            (CTIME, false),
        ] {
            let mut bytes = vec![0; 88];
            bytes[..4].copy_from_slice(&valid.to_le_bytes());
            let change = set_attr(&mut Fields::new(&bytes)).unwrap();
            assert_eq!(change.drops_privileges, drops, "{valid:b}");
        }
    }
}
