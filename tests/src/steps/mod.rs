//! Ending programs at any of their instructions.
//!
//! A client process prepares one operation and stops; its tracer carries out a chosen number of its
//! instructions, one by one, and kills it there. So every instruction is a place to be killed at
//! and nothing in the product knows of it. The rack daemon is killed the same way, inside the
//! thread that serves the clients.
//!
//! | module | holds |
//! |---|---|
//! | [`campaign`] | eight clients at a time that are killed, and what must hold afterwards |
//! | [`daemons`] | a daemon that is killed while it serves |
//! | [`plan`] | which operation is killed next, and where |
//! | [`autopsy`] | what a killed client's file says |
//! | [`stock`] | what a stopped client's file says of what `alloc` has in hand |
//! | [`tracer`] | stepping and killing |
//! | [`log`] | what the daemons say |
//! | [`symbols`] | which instructions are the product's own |

pub mod autopsy;
pub mod campaign;
pub mod daemons;
pub mod log;
pub mod plan;
pub mod stock;
pub mod symbols;
pub mod tracer;

use rackpool_client::{GlobalAddr, Pool};

use crate::pool::PAGE;

/// Fills a rack with objects of a page.
fn fill(own: &Pool) -> Vec<GlobalAddr> {
    let mut fillers = Vec::new();
    loop {
        let addr = own.alloc(PAGE).expect("room in one of the racks");
        if !own.is_local(addr).expect("an object in use") {
            own.free(addr).expect("an object in use");
            return fillers;
        }
        fillers.push(addr);
    }
}
