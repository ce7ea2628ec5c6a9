//! The data plane's side of the reserver: frames get memory before they are used, and lose it when
//! they have been free for long.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rackpool_model::FrameId;

use super::DataPlane;
use crate::reserver::{Order, ReserveRules};

/// How long no stock is ordered after the allocation of a frame's memory failed.
const REFUSED: Duration = Duration::from_secs(1);
/// Interval between two checks for frames that have been free for long.
const RELEASE_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of frames released in one check.
const RELEASED_AT_ONCE: usize = 256;

/// The connection to the reserver thread.
#[derive(Debug)]
pub(super) struct Reserves {
    orders: Sender<Order>,
    rules: ReserveRules,
    /// No stock is ordered before this time.
    refused_until: Option<Instant>,
    next_release: Instant,
    /// Frames that have got their memory since the daemon started.
    reserved: u64,
}

impl DataPlane {
    /// Starts to allocate the memory of frames before they are used.
    pub(crate) fn reserve_with(&mut self, orders: Sender<Order>, rules: ReserveRules) {
        self.slab.reserve_on_demand();
        let next_release = self.now();
        self.reserves =
            Some(Reserves { orders, rules, refused_until: None, next_release, reserved: 0 });
        self.keep_stock();
    }

    fn order(&self, orders: impl Iterator<Item = Order>) {
        if let Some(reserves) = &self.reserves {
            for order in orders {
                // Without a reserver the daemon is about to end.
                let _ = reserves.orders.send(order);
            }
        }
    }

    /// Orders memory for frames before it is needed.
    pub(super) fn keep_stock(&mut self) {
        let Some(reserves) = &mut self.reserves else { return };
        let stock = reserves.rules.stock;
        if !self.slab.lacks_stock(stock) {
            return;
        }
        if let Some(until) = reserves.refused_until {
            if Instant::now() < until {
                return;
            }
            reserves.refused_until = None;
        }
        let frames = self.slab.order_stock(stock);
        self.order(frames.into_iter().map(Order::Reserve));
    }

    /// Orders memory for an object of `bytes` bytes or, with `in_parts`, for the longest run.
    /// Returns true if it may fit once the reserver has executed its orders.
    pub(super) fn reserve_for(&mut self, bytes: u64, in_parts: bool) -> bool {
        if self.reserves.is_none() {
            return false;
        }
        let frames = self.slab.order_for(bytes, in_parts);
        self.order(frames.into_iter().map(Order::Reserve));
        self.slab.is_reserving()
    }

    /// The reserver has executed an order for a frame.
    pub(super) fn reserved(&mut self, frame: FrameId, is_there: bool) {
        self.slab.reserved(frame, is_there);
        match &mut self.reserves {
            Some(reserves) if is_there => reserves.reserved += 1,
            Some(reserves) => reserves.refused_until = Some(Instant::now() + REFUSED),
            None => {}
        }
    }

    /// How many frames have got their memory since the daemon started.
    pub(super) fn reserved_frames(&self) -> u64 {
        self.reserves.as_ref().map_or(0, |reserves| reserves.reserved)
    }

    /// Orders the release of frames that have been free for the time that the operator has set.
    /// Does nothing while pages move, because a free frame may be meant for one of them.
    pub(super) fn release_frames(&mut self) {
        let under_way = self.are_pages_moving();
        let Some(reserves) = &mut self.reserves else { return };
        let Some(long) = reserves.rules.release_after else { return };
        let now = Instant::now();
        if now < reserves.next_release || under_way {
            return;
        }
        reserves.next_release = now + RELEASE_EVERY;
        let stock = reserves.rules.stock;
        let mut pages = self.slab.free_for(now, long, stock, RELEASED_AT_ONCE);
        pages.retain(|page| !self.machine.swap().may_use(*page));
        let frames = self.slab.order_release(&pages);
        self.order(frames.into_iter().map(Order::Release));
    }
}
