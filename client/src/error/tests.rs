//! Error texts for users: each says what is wrong and what to do.

use super::*;

/// Checks the text of a value of each variant. The match has no catch-all arm: a new variant does
/// not compile until its text is here.
macro_rules! texts {
    ($error:ident: $($variant:pat => $value:expr, $text:expr;)+) => {{
        let known = |error: &$error| match error { $($variant => {})+ };
        for (value, text) in [$(($value, $text)),+] {
            known(&value);
            assert_eq!(value.to_string(), text);
        }
        $(assert!(matches!($value, $variant), "the text of another variant");)+
    }};
}

const ADDR: GlobalAddr = GlobalAddr::from_raw(0x20_0040);

#[test]
fn errors_of_opening_say_what_to_do() {
    use OpenError as E;
    let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
    texts! { OpenError:
        E::Connect { .. } => E::Connect { socket: "/pool/rack-0/daemon.sock".into(), source: broken() },
            "no rack daemon at /pool/rack-0/daemon.sock (broken pipe): start one with `rackpool up` \
             or check the folder and the rack";
        E::Folder(_) => E::Folder(FolderError::Open { folder: "/pool/rack-0".into(), owner: 1, mode: 0o755 }),
            "the rack's folder is not safe: /pool/rack-0 is open to other users (owner 1, mode 755): \
             `chmod 700 /pool/rack-0`";
        E::Io(_) => E::Io(broken()),
            "the connection to the rack daemon failed (broken pipe): see whether it runs \
             (`rackpool status`) and what its log says, then open the pool again";
        E::Codec(_) => E::Codec(CodecError::Truncated),
            "the message is cut short: see that the other end is a rackpool process of the same \
             release, and still runs";
        E::Refused(_) => E::Refused(ControlRefusal::UnknownClient),
            "the daemon does not know this client any more: open the pool again";
        E::Superblock(_) => E::Superblock(SuperblockError::Foreign("/pool/frames".into())),
            "/pool/frames is no file of rackpool: choose another folder, or remove that file";
        E::Protocol(_) => E::Protocol("3 descriptors came".into()),
            "the rack daemon broke the protocol: 3 descriptors came; run the same rackpool release \
             everywhere";
    }
}

#[test]
fn errors_of_accesses_say_what_to_do() {
    use AccessError as E;
    texts! { AccessError:
        E::LockLost(_) => E::LockLost(ADDR),
            "the lock of 0x200040 is lost (this process stood still for seconds, or a daemon ended): lock \
             again, and read before you write";
        E::NotLocked(_) => E::NotLocked(ADDR),
            "0x200040 is outside of the guard's lock: lock all bytes that are used together";
        E::InvalidAddress(_) => E::InvalidAddress(ADDR),
            "0x200040 is no address of this pool: use addresses that `alloc` returned";
        E::NotAllocated(_) => E::NotAllocated(ADDR),
            "0x200040 is not allocated (the object was freed, or the address is wrong): use \
             addresses that `alloc` returned, until they are freed";
        E::BeyondObject { .. } => E::BeyondObject { addr: ADDR, len: 100, available: 64 },
            "100 B at 0x200040 end past what is allocated there: access at most 64 B from there on";
        E::NotOwned(_) => E::NotOwned(ADDR),
            "this program does not own 0x200040: pass what `alloc_fixed` returned, until it is \
             disowned, reserved or freed";
        E::NotFixed(_) => E::NotFixed(ADDR),
            "0x200040 is no fixed object of this rack: only what `alloc_fixed` returned here can be \
             pinned";
        E::BeingWritten(_) => E::BeingWritten(ADDR),
            "0x200040 is being written in place by this program: drop its `PinnedBytesMut` first";
        E::Empty => E::Empty,
            "an access of 0 B: give at least one byte";
        E::Misaligned(_) => E::Misaligned(ADDR),
            "0x200040 is not aligned to 8 B: compare-and-swap and fetch-and-add need an address \
             that is a multiple of 8";
        E::PageLost(_) => E::PageLost(ADDR),
            "the page of 0x200040 is lost (its rack came back without its memory): allocate anew \
             and write the contents again";
        E::RackUnavailable(_) => E::RackUnavailable(RackId(1)),
            "rack 1 does not answer: its daemon is down or cut off; start it again";
        E::PageBusy(..) => E::PageBusy(ADDR, RackId(1)),
            "the page of 0x200040 moves and could not be reached, last at rack 1: try again";
        E::Indeterminate(_) => E::Indeterminate(RackId(1)),
            "rack 1 died during the operation: it may or may not have happened; read the value to \
             know";
        E::NotAReservation(_) => E::NotAReservation(ADDR),
            "0x200040 is no reservation that can be published (it was published, or is in doubt, or of \
             another pool): finish it with the pool that made it and begin another";
        E::Daemon(_) => E::Daemon(DaemonError::Closed),
            "the pool is closed: open it again";
    }
}

#[test]
fn errors_of_the_own_daemon_say_what_to_do() {
    use DaemonError as E;
    texts! { DaemonError:
        E::Unavailable => E::Unavailable,
            "the rack daemon does not answer: start it again, or raise the request timeout if it is \
             overloaded";
        E::Forgotten => E::Forgotten,
            "the rack daemon no longer knows this client (the client was disconnected too long, or the \
             rack's memory is new): open the pool again";
        E::MetadataUnreachable => E::MetadataUnreachable,
            "the metadata server does not answer: start it again";
        E::TooManyThreads(_) => E::TooManyThreads(64),
            "64 threads use this pool and none of them can leave it: finish their reservations, or open the \
             pool with more `ClientOptions::threads`";
        E::Closed => E::Closed,
            "the pool is closed: open it again";
        E::Inherited => E::Inherited,
            "this pool was opened by the process that this one was forked from: open it again here, \
             after the fork";
        E::Protocol => E::Protocol,
            "the rack daemon broke the protocol: run the same rackpool release everywhere";
    }
}

#[test]
fn errors_of_locks_say_what_to_do() {
    use LockError as E;
    texts! { LockError:
        E::TimedOut(_) => E::TimedOut(ADDR),
            "others hold the lock of 0x200040: try again, or wait longer";
        E::AlreadyHeld(_) => E::AlreadyHeld(ADDR),
            "this thread holds a lock of the cache line of 0x200040: use its guard, or drop it before you \
             lock again";
        E::TooLarge { .. } => E::TooLarge { addr: ADDR, len: 5000 },
            "5000 B at 0x200040 can't be locked together: lock 1 to 64 cache lines of one page";
        E::TooMany => E::TooMany,
            "this thread holds 32 locks: drop one first";
        E::NoRoom => E::NoRoom,
            "the file system of the pool has no room for locked lines of another rack: make it larger, \
             or free some objects";
        E::Access(_) => E::Access(AccessError::Empty),
            "an access of 0 B: give at least one byte";
    }
}

#[test]
fn errors_of_allocations_say_what_to_do() {
    use AllocError as E;
    let (rack_frames, rack_free, asked, other_frames, other_free) = (256, 0, 1, 512, 3);
    let (bytes, frames, rack, unreachable) = (64, 1, RackId(1), 0);
    let full = OutOfMemory {
        bytes,
        frames,
        rack,
        rack_frames,
        rack_free,
        asked,
        other_frames,
        other_free,
        unreachable,
    };
    let cut_off = OutOfMemory { frames: 7, asked: 0, unreachable: 2, ..full.clone() };
    assert_eq!(
        cut_off.to_string(),
        "out of memory: no rack has room for 64 B, 7 frames side by side; rack 1 has 0 of 256 \
         frames free, 2 racks can't be reached: free objects, or add a rack or memory"
    );
    texts! { NoCell:
        NoCell::AllInUse { .. } => NoCell::AllInUse { most: 9 },
            "this program has 9 objects that it owns, or pins: free, publish or disown some \
             objects, or drop some pins";
        NoCell::NoRoom => NoCell::NoRoom,
            "the file system of the pool has no room for the notes of more objects: make it larger, \
             or free some objects";
    }
    texts! { AllocError:
        E::ZeroSize => E::ZeroSize,
            "an allocation of 0 B: ask for at least one byte";
        E::TooLarge { .. } => E::TooLarge { bytes: 1 << 50, most: 1 << 30 },
            "an allocation of 1125899906842624 B is larger than the pool's largest rack (1073741824 \
             B), and an object lies in one rack: split it";
        E::OutOfMemory(_) => E::OutOfMemory(full.clone()),
            "out of memory: no rack has room for 64 B; rack 1 has 0 of 256 frames free, the 1 other \
             rack asked 3 of 512: free objects, or add a rack or memory";
        E::RackFull { .. } => E::RackFull { bytes: 64, rack: RackId(1), frames: 256, free: 0 },
            "rack 1 has no room for 64 B that keep their place (0 of 256 frames free), and no other \
             rack is asked for them: free objects there, or give the rack more memory";
        E::LargerThanPage { .. } => E::LargerThanPage { bytes: 5000, page_bytes: 4096 },
            "a fixed object of 5000 B is larger than a page (4096 B): allocate a head with \
             `alloc_fixed` and the rest with `alloc_extents`";
        E::NotAHead(_) => E::NotAHead(ADDR),
            "0x200040 is no fixed object of at least 64 B of this rack: extents belong to what \
             `alloc_fixed` returned here";
        E::NoCell(_) => E::NoCell(NoCell::AllInUse { most: 9 }),
            "this program has 9 objects that it owns, or pins: free, publish or disown some \
             objects, or drop some pins";
        E::TooManyReservations => E::TooManyReservations,
            "this thread has 16 reservations: publish or finish some";
        E::Access(_) => E::Access(AccessError::PageBusy(ADDR, RackId(0))),
            "the page of 0x200040 moves and could not be reached, last at rack 0: try again";
        E::Daemon(_) => E::Daemon(DaemonError::Closed),
            "the pool is closed: open it again";
    }
}

#[test]
fn errors_of_frees_and_names_say_what_to_do() {
    use {FreeError as F, RootError as R};
    texts! { FreeError:
        F::NotAnObject { .. } => F::NotAnObject { addr: ADDR, object_bytes: 128 },
            "0x200040 is not the start of an object (objects there have 128 B): free what `alloc` \
             returned";
        F::NotAllocated(_) => F::NotAllocated(ADDR),
            "0x200040 is not allocated (it was freed before, or never handed out): free what \
             `alloc` returned, and only once";
        F::Access(_) => F::Access(AccessError::RackUnavailable(RackId(2))),
            "rack 2 does not answer: its daemon is down or cut off; start it again";
    }
    texts! { RootError:
        R::OutOfBounds(_) => R::OutOfBounds(OutOfBounds::Name { bytes: 20_000 }),
            "a root's name of 20000 B: names have 1 to 255 B of UTF-8";
        R::Refused(_) => R::Refused(Refusal::Store("no space".into())),
            "the metadata store failed: no space; see the metadata server's log; whether the change \
             was made shows when the metadata server is started again";
        R::Daemon(_) => R::Daemon(DaemonError::MetadataUnreachable),
            "the metadata server does not answer: start it again";
    }
}
