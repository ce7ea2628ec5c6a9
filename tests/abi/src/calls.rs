//! What functions of the packages do with memory laid out as `crates/fabric-verbs` declares it.

use std::ffi::c_int;
use std::mem::{MaybeUninit, size_of};
use std::ptr::null_mut;

use rdma_sys::{ibv_context, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};

/// What the function pointers of this module return.
const ANSWER: c_int = 7531;

/// An inline function of the header that calls a function pointer of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inline {
    /// `ibv_poll_cq`.
    PollCq,
    /// `ibv_req_notify_cq`.
    ReqNotifyCq,
    /// `ibv_post_send`.
    PostSend,
    /// `ibv_post_recv`.
    PostRecv,
}

unsafe extern "C" fn poll(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    ANSWER
}

unsafe extern "C" fn notify(_: *mut ibv_cq, _: c_int) -> c_int {
    ANSWER
}

unsafe extern "C" fn send(_: *mut ibv_qp, _: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
    ANSWER
}

unsafe extern "C" fn receive(
    _: *mut ibv_qp,
    _: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    ANSWER
}

/// Calls the inline function, as rdma-sys writes it, with a context whose only function pointer
/// lies at `offset`. Returns true if that function was called.
///
/// # Panics
/// When the inline function takes its pointer from another offset.
#[must_use]
pub fn calls(inline: Inline, offset: usize) -> bool {
    assert!(offset + size_of::<usize>() <= size_of::<ibv_context>());
    let function: *const () = match inline {
        Inline::PollCq => poll as *const (),
        Inline::ReqNotifyCq => notify as *const (),
        Inline::PostSend => send as *const (),
        Inline::PostRecv => receive as *const (),
    };
    let mut context = MaybeUninit::<ibv_context>::zeroed();
    let at = context.as_mut_ptr().wrapping_byte_add(offset).cast::<*const ()>();
    // SAFETY: inside the context (checked).
    unsafe { at.write_unaligned(function) };
    let mut queue = MaybeUninit::<ibv_cq>::zeroed();
    // SAFETY: pointers and integers, all of which may be zero.
    let queue = unsafe { queue.assume_init_mut() };
    queue.context = context.as_mut_ptr();
    let mut pair = MaybeUninit::<ibv_qp>::zeroed();
    // SAFETY: as above.
    let pair = unsafe { pair.assume_init_mut() };
    pair.context = context.as_mut_ptr();
    let answer = match inline {
        // SAFETY: the function reads the context and calls a function of this module.
        Inline::PollCq => unsafe { rdma_sys::ibv_poll_cq(queue, 1, null_mut()) },
        // SAFETY: as above.
        Inline::ReqNotifyCq => unsafe { rdma_sys::ibv_req_notify_cq(queue, 0) },
        // SAFETY: as above.
        Inline::PostSend => unsafe { rdma_sys::ibv_post_send(pair, null_mut(), null_mut()) },
        // SAFETY: as above.
        Inline::PostRecv => unsafe { rdma_sys::ibv_post_recv(pair, null_mut(), null_mut()) },
    };
    answer == ANSWER
}

/// A completion of ibverbs made of these bytes.
#[must_use]
pub fn completion(bytes: [u8; 48]) -> ibverbs::ibv_wc {
    // SAFETY: a struct of integers, of as many bytes.
    unsafe { std::mem::transmute::<[u8; 48], ibverbs::ibv_wc>(bytes) }
}
