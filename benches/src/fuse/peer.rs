//! The reference for the mount: files of one folder, passed through unchanged, with the same
//! library and the same options of the kernel.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Parser;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};
use rackpool_fuse::{MountOptions, session};

const KEEP: Duration = Duration::ZERO;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves the reference file system until the input ends. Arguments: the folder, and the mount
/// point.
pub fn be_peer(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let backing = PathBuf::from(arguments.next().context("the folder to pass through")?);
    let at = arguments.next().context("where to mount it")?;
    let options = MountOptions::try_parse_from(["rackpool-fuse", at.as_str()])?;
    let peer = Peer { backing, names: RwLock::default(), open: RwLock::default(), next: 1.into() };
    let session = Session::new(peer, &at, &session::config(&options))?.spawn()?;
    session::set_read_ahead(Path::new(&at), options.read_ahead);
    println!("mounted");
    let _ = std::io::stdin().read_line(&mut String::new());
    // The parent may have unmounted it.
    let _ = session.umount_and_join();
    Ok(())
}

struct Peer {
    backing: PathBuf,
    names: RwLock<HashMap<u64, OsString>>,
    open: RwLock<HashMap<u64, Arc<File>>>,
    next: AtomicU64,
}

impl Peer {
    fn path(&self, ino: INodeNo) -> io::Result<PathBuf> {
        if ino == INodeNo::ROOT {
            return Ok(self.backing.clone());
        }
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let name = names.get(&ino.0).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.backing.join(name))
    }

    fn find(&self, name: &OsStr) -> io::Result<FileAttr> {
        let metadata = std::fs::symlink_metadata(self.backing.join(name))?;
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        names.insert(metadata.ino(), name.to_owned());
        Ok(attributes(&metadata, INodeNo(metadata.ino())))
    }

    fn attr(&self, ino: INodeNo) -> io::Result<FileAttr> {
        Ok(attributes(&std::fs::symlink_metadata(self.path(ino)?)?, ino))
    }

    fn resize(&self, ino: INodeNo, size: Option<u64>) -> io::Result<FileAttr> {
        if let Some(size) = size {
            File::options().write(true).open(self.path(ino)?)?.set_len(size)?;
        }
        self.attr(ino)
    }

    fn keep_open(&self, file: File) -> FileHandle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&handle.0).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn attributes(metadata: &Metadata, ino: INodeNo) -> FileAttr {
    let time = |time: io::Result<SystemTime>| time.unwrap_or(SystemTime::UNIX_EPOCH);
    FileAttr {
        ino,
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: time(metadata.accessed()),
        mtime: time(metadata.modified()),
        ctime: time(metadata.modified()),
        crtime: time(metadata.modified()),
        kind: FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile),
        perm: u16::try_from(metadata.mode() & 0o7777).unwrap_or_default(),
        nlink: u32::try_from(metadata.nlink()).unwrap_or(1),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn treatment(flags: i32) -> FopenFlags {
    if flags & nix::libc::O_DIRECT == 0 {
        return FopenFlags::empty();
    }
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

impl Filesystem for Peer {
    fn init(&mut self, _: &Request, kernel: &mut KernelConfig) -> io::Result<()> {
        session::negotiate(kernel);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(name) {
            Ok(attr) => reply.entry(&KEEP, &attr, Generation(0)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Ok(attr) => reply.attr(&KEEP, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.resize(ino, size) {
            Ok(attr) => reply.attr(&KEEP, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let options = &mut File::options();
        let made = options.read(true).write(true).create(true).open(self.backing.join(name));
        match made.and_then(|file| Ok((file, self.find(name)?))) {
            Ok((file, attr)) => {
                let handle = self.keep_open(file);
                reply.created(&KEEP, &attr, Generation(0), handle, treatment(flags));
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let path = self.path(ino);
        match path.and_then(|path| File::options().read(true).write(true).open(path)) {
            Ok(file) => reply.opened(self.keep_open(file), treatment(flags.0)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = usize::try_from(size).unwrap_or_default();
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let read = self.file(handle).and_then(|file| file.read_at(&mut buffer[..size], offset));
            match read {
                Ok(read) => reply.data(&buffer[..read]),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.file(handle).and_then(|file| file.write_at(data, offset)) {
            Ok(written) => reply.written(u32::try_from(written).unwrap_or_default()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.0);
        reply.ok();
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match std::fs::remove_file(self.backing.join(name)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: fuser::ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}
