//! Kills programs at any of their instructions.
//!
//! A client process prepares one operation and stops. Its tracer executes a chosen number of its
//! instructions one by one, and kills it there. Every instruction is thus a possible place of a
//! kill, without any support in the product. The rack daemon is killed the same way, inside its
//! data plane thread.
//!
//! | module | holds |
//! |---|---|
//! | [`campaign`] | kills of clients in eight slots, and the checks afterwards |
//! | [`daemons`] | kills of a daemon while it serves requests |
//! | [`plan`] | the next operation to be killed, and the instruction |
//! | [`autopsy`] | checks of a killed client's file |
//! | [`stock`] | the object that a stopped client's `alloc` has in hand, from its file |
//! | [`tracer`] | stepping and killing |
//! | [`executable`] | one build of a program, however often it is started |
//! | [`log`] | unexpected messages of the daemons |
//! | [`symbols`] | which instructions are the product's own |

pub mod autopsy;
pub mod campaign;
pub mod daemons;
pub mod executable;
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
        if !own.is_in_own_part(addr).expect("an object in use") {
            own.free(addr).expect("an object in use");
            return fillers;
        }
        fillers.push(addr);
    }
}
