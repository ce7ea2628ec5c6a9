use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi;
use super::library::{Library, library};
use super::{check, last_error};
use crate::DeviceLimits;
use crate::verbs::LoadError;

/// The most GIDs that are read from a device.
const MAX_GIDS: usize = 1024;

/// An opened device.
pub(crate) struct Context {
    pub(super) raw: NonNull<abi::Context>,
    pub(super) library: &'static Library,
    name: String,
}

// SAFETY: libibverbs is thread-safe for all objects of a context.
unsafe impl Send for Context {}
// SAFETY: as for `Send`.
unsafe impl Sync for Context {}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortState {
    pub(crate) active: bool,
    pub(crate) infiniband: bool,
    /// MTU as in the ABI: 1 to 5 for 256 to 4096 B.
    pub(crate) mtu: u8,
    pub(crate) lid: u16,
    /// Maximum length of one work request, in bytes.
    pub(crate) max_message: u32,
}

/// A GID of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    pub(crate) port: u8,
    pub(crate) index: u8,
    pub(crate) gid: [u8; 16],
    pub(crate) roce_v2: bool,
}

/// The RDMA devices of this host.
pub(crate) struct Devices {
    pub(crate) opened: Vec<Context>,
    /// The devices that could not be opened, with the errors.
    pub(crate) closed: Vec<(String, io::Error)>,
}

/// Opens every device that can be opened.
pub(crate) fn open_devices() -> Result<Devices, LoadError> {
    let library = library()?;
    let mut devices = Devices { opened: Vec::new(), closed: Vec::new() };
    let mut count = 0;
    // SAFETY: the function only writes the count.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        return Ok(devices);
    }
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let entry = unsafe { list.add(index) };
        // SAFETY: as above; the list is freed below.
        let device = unsafe { *entry };
        // SAFETY: a device of the list.
        let name = unsafe { (library.get_device_name)(device) };
        // SAFETY: a string that lives as long as the device.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY: a device of the list.
        match NonNull::new(unsafe { (library.open_device)(device) }) {
            Some(raw) => devices.opened.push(Context { raw, library, name }),
            None => devices.closed.push((name, last_error())),
        }
    }
    // SAFETY: the list from above, no longer used. Opened devices stay.
    unsafe { (library.free_device_list)(list) };
    Ok(devices)
}

impl Context {
    /// The name of the device.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The number of ports, counted from 1, and the device's capabilities. The message length is a
    /// property of each port and is left unlimited here.
    pub(crate) fn limits(&self) -> io::Result<(u8, DeviceLimits)> {
        let mut attr = MaybeUninit::<abi::DeviceAttr>::zeroed();
        // SAFETY: an open context, and room for the answer.
        check(unsafe { (self.library.query_device)(self.raw.as_ptr(), attr.as_mut_ptr()) })?;
        // SAFETY: integers only, zeroed before.
        let attr = unsafe { attr.assume_init() };
        let positive = |value: std::ffi::c_int| u32::try_from(value).unwrap_or(0);
        let byte = |value| u8::try_from(positive(value)).unwrap_or(u8::MAX);
        let limits = DeviceLimits {
            registration: attr.max_mr_size,
            queue: positive(attr.max_qp_wr),
            completions: positive(attr.max_cqe),
            reads_answered: byte(attr.max_qp_rd_atom),
            reads_asked: byte(attr.max_qp_init_rd_atom),
            message: u32::MAX,
        };
        Ok((attr.phys_port_cnt, limits))
    }

    pub(crate) fn port(&self, number: u8) -> io::Result<PortState> {
        let mut attr = MaybeUninit::<abi::PortAttr>::zeroed();
        // SAFETY: an open context, and room for the answer, of which the function writes the part
        // up to the flags.
        check(unsafe { (self.library.query_port)(self.raw.as_ptr(), number, attr.as_mut_ptr()) })?;
        // SAFETY: integers only, zeroed before.
        let attr = unsafe { attr.assume_init() };
        Ok(PortState {
            active: attr.state == abi::PORT_ACTIVE,
            infiniband: attr.link_layer == abi::LINK_LAYER_INFINIBAND,
            mtu: u8::try_from(attr.active_mtu).unwrap_or(0),
            lid: attr.lid,
            max_message: attr.max_msg_sz,
        })
    }

    /// The GIDs of all ports.
    pub(crate) fn gids(&self) -> io::Result<Vec<GidEntry>> {
        let mut entries = vec![abi::GidEntry::default(); MAX_GIDS];
        let (context, size) = (self.raw.as_ptr(), size_of::<abi::GidEntry>());
        // SAFETY: `entries` has room for `MAX_GIDS` entries of `size` bytes.
        let count = unsafe {
            (self.library.query_gid_table)(context, entries.as_mut_ptr(), MAX_GIDS, 0, size)
        };
        let count = usize::try_from(count).map_err(|_| last_error_of(count))?;
        let gid = |entry: &abi::GidEntry| {
            Some(GidEntry {
                port: u8::try_from(entry.port_num).ok()?,
                index: u8::try_from(entry.gid_index).ok()?,
                gid: entry.gid.0,
                roce_v2: entry.gid_type == abi::GID_TYPE_ROCE_V2,
            })
        };
        Ok(entries.iter().take(count).filter_map(gid).collect())
    }
}

/// The error of a call that returned a negative count, which is a negated error number.
fn last_error_of(count: isize) -> io::Error {
    i32::try_from(-count).map_or_else(|_| last_error(), io::Error::from_raw_os_error)
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every object of the context keeps a reference to it, so none exists any more.
        unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

/// A protection domain: memory registered in it is accessible through its queue pairs.
pub(crate) struct Domain {
    pub(super) raw: NonNull<abi::Pd>,
    pub(super) context: Arc<Context>,
}

// SAFETY: as for the context.
unsafe impl Send for Domain {}
// SAFETY: as for the context.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: an open context.
        let raw = unsafe { (context.library.alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(last_error)?;
        Ok(Self { raw, context: Arc::clone(context) })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: every object of the domain keeps a reference to it, so none exists any more.
        unsafe { (self.context.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}
