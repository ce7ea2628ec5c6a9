//! Decodes the kernel's requests, executes them and answers.

use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, FopenFlags, RenameFlags, WriteFlags};
use rackpool_fs::{Attr, Caller, Ino, NewNode};

use super::{Answer, Shell};
use crate::device::{Directory, Fields, Header, Opened, Reply, opcode};
use crate::reply::set_attr;

/// The handle and flags of open folders, which are identified by inode.
const FOLDER: Opened = Opened { handle: 0, flags: FopenFlags::empty() };

/// The flag of `SETXATTR` that the caller is not in the file's group.
const ACL_KILL_SGID: u32 = 1;

/// A request that is being served.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) shell: &'a Shell,
    pub(super) header: Header,
    pub(super) fields: Fields<'a>,
}

/// A file that was created and opened.
struct Created {
    attr: Attr,
    opened: Opened,
}

/// Bytes for a buffer of the kernel.
struct BufferAnswer {
    bytes: Vec<u8>,
    /// The size of the buffer; 0 asks for the size that is needed.
    size: u32,
}

/// Answers with a result or its error.
fn tell<T>(answer: Answer<T>, reply: Reply, how: impl FnOnce(Reply, T)) {
    match answer {
        Ok(found) => how(reply, found),
        Err(error) => reply.error(error),
    }
}

fn entry(answer: Answer<Attr>, reply: Reply) {
    tell(answer, reply, |reply, attr| reply.entry(&attr));
}

fn done(answer: Answer<()>, reply: Reply) {
    tell(answer, reply, |reply, ()| reply.done());
}

/// Answers with bytes, or with their number if the kernel's buffer size is 0.
fn sized(answer: Answer<BufferAnswer>, reply: Reply) {
    tell(answer, reply, |reply, BufferAnswer { bytes, size }| match u32::try_from(bytes.len()) {
        Ok(len) if size == 0 => reply.count(len),
        Ok(len) if len <= size => reply.bytes(&bytes),
        _ => reply.error(Errno::ERANGE),
    });
}

impl Shell {
    /// Serves a request; a lock request may be answered later.
    pub(crate) fn answer(&self, header: Header, fields: Fields<'_>, reply: Reply) {
        self.counts.asked(header.opcode);
        let mut asked = Request { shell: self, header, fields };
        match header.opcode {
            opcode::LOOKUP => entry(asked.lookup(), reply),
            opcode::GETATTR => tell(self.attr(header.ino), reply, |reply, attr| reply.attr(&attr)),
            opcode::SETATTR => tell(asked.set_attr(), reply, |reply, attr| reply.attr(&attr)),
            opcode::READLINK => {
                tell(self.readlink(header.ino), reply, |reply, target| reply.bytes(&target));
            }
            opcode::SYMLINK => entry(asked.symlink(), reply),
            opcode::MKNOD => entry(asked.mknod(), reply),
            opcode::MKDIR => entry(asked.mkdir(), reply),
            opcode::UNLINK => done(asked.unlink(), reply),
            opcode::RMDIR => done(asked.rmdir(), reply),
            opcode::RENAME => done(asked.rename(false), reply),
            opcode::RENAME2 => done(asked.rename(true), reply),
            opcode::LINK => entry(asked.link(), reply),
            opcode::CREATE => {
                tell(asked.create(), reply, |reply, made| reply.created(&made.attr, made.opened));
            }
            opcode::TMPFILE => {
                tell(asked.tmpfile(), reply, |reply, made| reply.created(&made.attr, made.opened));
            }
            opcode::STATFS => tell(self.stat_fs(), reply, |reply, found| reply.stat_fs(&found)),
            opcode::SETXATTR => done(asked.setxattr(), reply),
            opcode::GETXATTR => sized(asked.getxattr(), reply),
            opcode::LISTXATTR => sized(asked.listxattr(), reply),
            opcode::REMOVEXATTR => done(asked.removexattr(), reply),
            _ => asked.use_file(reply),
        }
    }
}

impl Request<'_> {
    /// Serves requests for open files and folders.
    fn use_file(mut self, reply: Reply) {
        let (shell, ino) = (self.shell, self.header.ino);
        match self.header.opcode {
            opcode::OPEN => tell(self.open(), reply, Reply::opened),
            opcode::READ => self.read(reply),
            opcode::WRITE => tell(self.write(), reply, Reply::count),
            opcode::FLUSH => done(self.flush(), reply),
            opcode::RELEASE => done(self.release(), reply),
            opcode::FSYNC => done(shell.sync(ino), reply),
            opcode::FALLOCATE => done(self.fallocate(), reply),
            opcode::LSEEK => tell(self.lseek(), reply, Reply::offset),
            opcode::OPENDIR => {
                tell(shell.open_folder(ino), reply, |reply, ()| reply.opened(FOLDER));
            }
            opcode::READDIR => {
                tell(self.readdir(), reply, |reply, folder| reply.bytes(folder.bytes()));
            }
            opcode::RELEASEDIR => done(shell.release(ino), reply),
            // Changes of folders are in the pool when they are answered.
            opcode::FSYNCDIR => reply.done(),
            opcode::GETLK => self.getlk(reply),
            opcode::SETLK => self.setlk(reply, false),
            opcode::SETLKW => self.setlk(reply, true),
            opcode::INTERRUPT => self.interrupt(reply),
            opcode::FORGET => {
                shell.forget(ino);
                reply.none();
            }
            opcode::BATCH_FORGET => {
                // Inodes missing from a request that was cut short are forgotten when the mount
                // ends.
                let _ = self.batch_forget();
                reply.none();
            }
            _ => reply.error(Errno::ENOSYS),
        }
    }

    fn lookup(&mut self) -> Answer<Attr> {
        self.shell.lookup(self.header.ino, self.fields.name()?)
    }

    /// valid u32 | zero u32 | handle u64 | the attributes to set
    fn set_attr(&mut self) -> Answer<Attr> {
        let change = set_attr(&mut self.fields)?;
        self.shell.set_attr(self.header.ino, change, self.header.caller)
    }

    /// The caller of a request that creates something; the umask is the next field.
    fn masked_caller(&mut self) -> Answer<Caller> {
        Ok(self.header.caller.with_umask(self.fields.u32()?))
    }

    fn symlink(&mut self) -> Answer<Attr> {
        let (name, target) = (self.fields.name()?, self.fields.name()?);
        let node = NewNode::Symlink(target.as_bytes());
        self.shell.make(self.header.ino, name, node, 0o777, self.header.caller)
    }

    /// mode u32 | device u32 | umask u32 | zero u32 | name
    fn mknod(&mut self) -> Answer<Attr> {
        let (mode, device) = (self.fields.u32()?, self.fields.u32()?);
        let caller = self.masked_caller()?;
        self.fields.skip(4)?;
        let name = self.fields.name()?;
        self.shell.make_node(self.header.ino, name, mode, device, caller)
    }

    /// mode u32 | umask u32 | name
    fn mkdir(&mut self) -> Answer<Attr> {
        let mode = self.fields.u32()?;
        let caller = self.masked_caller()?;
        let name = self.fields.name()?;
        self.shell.make(self.header.ino, name, NewNode::Directory, mode, caller)
    }

    fn unlink(&mut self) -> Answer<()> {
        self.shell.unlink(self.header.ino, self.fields.name()?)
    }

    fn rmdir(&mut self) -> Answer<()> {
        self.shell.rmdir(self.header.ino, self.fields.name()?)
    }

    /// new folder u64 | flags u32, zero u32 if there are flags | name | new name
    fn rename(&mut self, has_flags: bool) -> Answer<()> {
        let parent = Ino(self.fields.u64()?);
        let mut flags = RenameFlags::empty();
        if has_flags {
            flags = RenameFlags::from_bits_retain(self.fields.u32()?);
            self.fields.skip(4)?;
        }
        let (name, new_name) = (self.fields.name()?, self.fields.name()?);
        let owner = self.header.caller;
        self.shell.rename(self.header.ino, name, parent, new_name, flags, owner)
    }

    /// inode u64 | name
    fn link(&mut self) -> Answer<Attr> {
        let ino = Ino(self.fields.u64()?);
        self.shell.link(ino, self.header.ino, self.fields.name()?)
    }

    /// flags u32 | mode u32 | umask u32 | flags u32 | name
    fn create(&mut self) -> Answer<Created> {
        let (flags, mode) = (self.fields.i32()?, self.fields.u32()?);
        let caller = self.masked_caller()?;
        self.fields.skip(4)?;
        let (parent, name) = (self.header.ino, self.fields.name()?);
        let attr = self.shell.create(parent, name, mode, flags, caller)?;
        Ok(Created { attr, opened: self.shell.treatment(&attr, flags) })
    }

    /// As for create, with a name that is never used.
    fn tmpfile(&mut self) -> Answer<Created> {
        let (flags, mode) = (self.fields.i32()?, self.fields.u32()?);
        let caller = self.masked_caller()?;
        let attr = self.shell.create_unnamed(self.header.ino, mode, caller)?;
        Ok(Created { attr, opened: self.shell.treatment(&attr, flags) })
    }

    /// size u32 | flags u32 | more flags u32 | zero u32 | name | value
    fn setxattr(&mut self) -> Answer<()> {
        let (size, flags, more) = (self.fields.u32()?, self.fields.i32()?, self.fields.u32()?);
        self.fields.skip(4)?;
        let (name, value) = (self.fields.name()?, self.fields.bytes(size)?);
        let is_outside_group = more & ACL_KILL_SGID != 0;
        self.shell.set_xattr(self.header.ino, name, value, flags, is_outside_group)
    }

    /// size u32 | zero u32 | name
    fn getxattr(&mut self) -> Answer<BufferAnswer> {
        let size = self.fields.u32()?;
        self.fields.skip(4)?;
        let bytes = self.shell.xattr(self.header.ino, self.fields.name()?)?;
        Ok(BufferAnswer { bytes, size })
    }

    fn listxattr(&mut self) -> Answer<BufferAnswer> {
        let size = self.fields.u32()?;
        let bytes = self.shell.xattrs(self.header.ino, self.header.caller.uid)?;
        Ok(BufferAnswer { bytes, size })
    }

    fn removexattr(&mut self) -> Answer<()> {
        self.shell.remove_xattr(self.header.ino, self.fields.name()?)
    }

    fn open(&mut self) -> Answer<Opened> {
        let flags = self.fields.i32()?;
        self.shell.open(self.header.ino, flags)
    }

    /// handle u64 | offset u64 | size u32 | ...
    fn read(&mut self, reply: Reply) {
        let fields = &mut self.fields;
        let asked = fields.skip(8).and_then(|()| Ok((fields.u64()?, fields.u32()?)));
        match asked {
            Ok((offset, size)) => self.shell.read(self.header.ino, offset, size, reply),
            Err(error) => reply.error(error),
        }
    }

    /// handle u64 | offset u64 | size u32 | how u32 | owner u64 | flags u32 | zero u32 | bytes
    fn write(&mut self) -> Answer<u32> {
        self.fields.skip(8)?;
        let (offset, size) = (self.fields.u64()?, self.fields.u32()?);
        let how = WriteFlags::from_bits_retain(self.fields.u32()?);
        self.fields.skip(8)?;
        let flags = self.fields.i32()?;
        self.fields.skip(4)?;
        let data = self.fields.bytes(size)?;
        self.shell.write(self.header.ino, offset, data, how, flags)
    }

    /// handle u64 | zero u64 | owner u64
    fn flush(&mut self) -> Answer<()> {
        let handle = self.fields.u64()?;
        self.fields.skip(8)?;
        let owner = self.fields.u64()?;
        self.shell.flush(self.header.ino, handle, owner)
    }

    /// handle u64 | ...
    fn release(&mut self) -> Answer<()> {
        let handle = self.fields.u64()?;
        self.shell.release_file(self.header.ino, handle)
    }

    /// handle u64 | offset u64 | length u64 | mode u32 | zero u32
    fn fallocate(&mut self) -> Answer<()> {
        self.fields.skip(8)?;
        let (offset, len) = (self.fields.u64()?, self.fields.u64()?);
        let mode = self.fields.i32()?;
        self.shell.allocate(self.header.ino, offset, len, mode, self.header.caller)
    }

    /// handle u64 | offset u64 | whence u32 | zero u32
    fn lseek(&mut self) -> Answer<i64> {
        self.fields.skip(8)?;
        let (offset, whence) = (self.fields.i64()?, self.fields.i32()?);
        self.shell.seek(self.header.ino, offset, whence)
    }

    /// handle u64 | offset u64 | size u32 | ...
    fn readdir(&mut self) -> Answer<Directory> {
        self.fields.skip(8)?;
        let (cookie, size) = (self.fields.u64()?, self.fields.u32()?);
        let mut folder = Directory::new(size);
        self.shell.list(self.header.ino, cookie, &mut folder)?;
        Ok(folder)
    }

    /// count u32 | zero u32 | each: node u64, count u64
    fn batch_forget(&mut self) -> Answer<()> {
        let count = self.fields.u32()?;
        self.fields.skip(4)?;
        for _ in 0..count {
            self.shell.forget(Ino(self.fields.u64()?));
            self.fields.skip(8)?;
        }
        Ok(())
    }
}
