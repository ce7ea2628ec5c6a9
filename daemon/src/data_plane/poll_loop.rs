//! The poll loop: what is polled in which order. [`idle`](super::idle) decides when the thread
//! spins, yields or sleeps.

#[cfg(feature = "testing")]
mod single_step;

use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use rackpool_fabric::Event;
use rackpool_proto::rack::RackEvent;
use rackpool_rrpc::{CallEvent, CallId, Data, Failure};

use super::DataPlane;
use super::command::Command;
use super::idle::{Idle, IdleRound};
use super::transfer_number::TransferUser;
use crate::data_plane::error::Result;

#[cfg(feature = "testing")]
pub use single_step::MemoryMetrics;

/// Maximum number of requests taken from one ring before the next ring is polled.
pub(super) const ROUND: usize = 32;
/// Rounds between two checks of the control plane's commands, about a microsecond. A check costs as
/// much as polling one client's rings.
const COMMANDS_EVERY: u32 = 16;
/// While the next completion is further away than this, other threads get the core: several times
/// the cost of yielding it.
const DISTANT: Duration = Duration::from_micros(50);
/// While the next completion is further away than this, the data plane may sleep: several times the
/// cost of a sleep.
const FAR: Duration = Duration::from_micros(200);

impl DataPlane {
    /// Runs until the control plane sends `Stop`.
    pub(crate) fn run(mut self) -> Result<()> {
        let mut round = 0_u32;
        loop {
            let mut busy = false;
            if round.is_multiple_of(COMMANDS_EVERY) {
                match self.take_commands()? {
                    Some(any) => busy = any,
                    None => return Ok(()),
                }
            }
            round = round.wrapping_add(1);
            busy |= self.poll_fabric()?;
            self.tick()?;
            // Wake clients whose remote operations completed, before accepting new requests.
            self.clients.rouse(&*self.rack.client_host);
            // Events of the fabric can wait for a few looks at the rings.
            let (mut looks, mut served) = (self.active_set.round(!self.transfers.is_empty()), 0);
            while looks > 0 && served < ROUND {
                // Operations for other racks are posted before another look that finds no request.
                // Clients that are answered at once may post their next requests within the
                // following looks.
                let gathered = self.rrpc.has_gathered();
                let round = self.poll_clients(if gathered { 1 } else { looks })?;
                (looks, served) = (looks - round.looks, served + round.served);
                if gathered && round.served == 0 {
                    break;
                }
            }
            busy |= served > 0;
            self.exchange_with_peers()?;
            self.clients.rouse(&*self.rack.client_host);
            self.cut_off_stalled(false);
            self.collect_heat(false);
            if busy {
                self.publish_memory();
                self.keep_stock();
            }
            self.release_frames();
            let is_working = busy || self.rrpc.has_gathered();
            let completion = if is_working { None } else { self.fabric.next_completion() };
            if is_working || completion.is_some_and(|until| until <= FAR) {
                let has_copied = std::mem::take(&mut self.has_copied_chunk);
                self.idle_policy.worked(has_copied);
                if completion.is_some_and(|until| until > DISTANT) {
                    std::thread::yield_now();
                }
                continue;
            }
            if self.idle_policy.keeps_polling(Instant::now) {
                std::thread::yield_now();
                continue;
            }
            match self.idle() {
                Idle::Poll => {}
                Idle::Yield => std::thread::yield_now(),
                Idle::Sleep => {
                    self.publish_metrics();
                    self.cut_off_stalled(true);
                    self.go_to_sleep()?;
                    self.cut_off_stalled(true);
                    self.collect_heat(true);
                    self.idle_policy.slept();
                    // A command may have ended the sleep: check for commands first.
                    round = 0;
                }
            }
        }
    }

    fn idle(&mut self) -> Idle {
        let has_woken = self.clients.has_woken();
        let round = IdleRound { has_woken, are_pages_moving: self.are_pages_moving() };
        let swaps = &self.swaps;
        self.idle_policy.idle(round, || swaps.is_urgent(Instant::now()))
    }

    /// Executes the waiting commands. Returns whether there were any; `None` after `Stop`.
    fn take_commands(&mut self) -> Result<Option<bool>> {
        self.cached_now = None;
        let mut any = false;
        loop {
            match self.commands.try_recv() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(None),
                Ok(Command::Admit { client, file, doorbell, admitted }) => {
                    let served = self.admit(client, file, doorbell)?;
                    // The receiver is gone if the client has left meanwhile; `Gone` follows then.
                    let _ = admitted.send(served);
                }
                Ok(Command::Gone { client }) => self.client_gone(client)?,
                Ok(Command::Members(members)) => self.members_changed(members)?,
                Ok(Command::PageHistory { page, answer }) => {
                    let _ = answer.send(self.page_history(page));
                }
                Ok(Command::TopPages { limit, answer }) => {
                    let _ = answer.send(self.top_pages(limit));
                }
                Ok(Command::Located { page, question, home }) => {
                    self.located(page, question, home);
                }
                Ok(Command::Committed(position)) => {
                    self.rack.metadata.superblock()?.set_seen(position);
                }
                Ok(Command::ServerSent(message)) => {
                    self.machine.handle(RackEvent::ServerSent(message));
                }
                Ok(Command::Reserved { frame, is_there }) => self.reserved(frame, is_there),
                Ok(Command::Released { frame }) => self.slab.reserved(frame, false),
                Err(TryRecvError::Empty) => return Ok(Some(any)),
            }
            self.run_machine()?;
            any = true;
        }
    }

    fn poll_fabric(&mut self) -> Result<bool> {
        let mut events = std::mem::take(&mut self.events);
        self.fabric.poll(&mut events);
        let busy = !events.is_empty();
        if busy {
            self.cached_now = None;
            let now = self.now();
            for event in events.drain(..) {
                self.fabric_event(now, event)?;
            }
        }
        self.events = events;
        if busy {
            self.publish_requests();
        }
        Ok(busy)
    }

    /// Sends and posts what was gathered for other racks in this round, with one doorbell for each
    /// rack, and handles the resulting events.
    fn exchange_with_peers(&mut self) -> Result<()> {
        loop {
            self.rrpc.flush(&mut *self.fabric);
            if !self.hear_of_peers()? {
                return Ok(());
            }
        }
    }

    fn fabric_event(&mut self, now: Instant, event: Event) -> Result<()> {
        match event {
            Event::Connected { endpoint, peer, .. } => {
                self.rrpc.take_in(now, event);
                self.connected(endpoint, peer)?;
            }
            Event::Accepted { endpoint, peer, .. } => {
                self.rrpc.take_in(now, event);
                self.accepted(endpoint, peer);
            }
            Event::ConnectFailed { endpoint, error } => {
                self.peers.connect_failed(endpoint, &error);
            }
            Event::Disconnected { endpoint, ref reason } => {
                self.disconnected(endpoint, reason)?;
                self.rrpc.take_in(now, event);
            }
            Event::Fenced { endpoint } => self.endpoint_fenced(endpoint),
            event => self.rrpc.take_in(now, event),
        }
        self.run_machine()?;
        self.hear_of_peers().map(drop)
    }

    /// Handles the events of calls and transfers. Returns true if there were any.
    fn hear_of_peers(&mut self) -> Result<bool> {
        let mut any = false;
        while let Some(event) = self.rrpc.call_events() {
            any = true;
            match event {
                CallEvent::Asked { ask, body } => self.peer_asks(ask, &body)?,
                CallEvent::Answered { call, head, data } => self.answered(call, &head, data)?,
                CallEvent::Failed { call, failure } => self.failed(call, &failure)?,
                CallEvent::Transferred { id, result, .. } => match TransferUser::of(id) {
                    TransferUser::Client => self.transferred(id, result)?,
                    TransferUser::Swap => self.page_read(id, result)?,
                    TransferUser::Replica => self.copy_read(id, result),
                },
                CallEvent::Withdrawn { ask } => self.forget_asks(|waiting| waiting == ask),
                CallEvent::Calibrated { endpoint, thresholds } => {
                    self.calibrated(endpoint, thresholds)
                }
                // No other event needs an action: this daemon gives up no request that names a
                // place.
                _ => {}
            }
            self.run_machine()?;
        }
        Ok(any)
    }

    fn answered(&mut self, call: CallId, head: &[u8], data: Data) -> Result<()> {
        if self.contents_answered(call, head, data)? {
            return Ok(());
        }
        self.peer_answered(call, head)
    }

    fn failed(&mut self, call: CallId, failure: &Failure) -> Result<()> {
        if self.contents_failed(call)? { Ok(()) } else { self.call_failed(call, failure) }
    }

    /// Does what is due: deadlines, leaving pages, waiting requests.
    fn tick(&mut self) -> Result<()> {
        if self.has_deadlines() { self.tick_at(Instant::now()) } else { Ok(()) }
    }

    fn tick_at(&mut self, now: Instant) -> Result<()> {
        self.cached_now = None;
        self.drive_sharing(now);
        self.drive_machine(now)?;
        self.drive_waiters(now)?;
        self.drive_retiring(now)?;
        self.feed_starved(now)?;
        self.feed_starved_peers()?;
        if now >= self.next_tick {
            self.next_tick = now + Duration::from_millis(2);
            self.drive_peers(now)?;
            self.send_lock_messages(now)?;
            self.report_ended_operations();
            self.run_machine()?;
        }
        Ok(())
    }

    /// Returns true if anything has to be done at a later time without an event.
    pub(super) fn has_deadlines(&self) -> bool {
        self.slab.is_leaving()
            || self.machine_has_deadlines()
            || self.has_retiring()
            || !self.starved.is_empty()
            || !self.starved_peers.is_empty()
            || self.peers.has_deadlines()
            || self.rrpc.deadline().is_some()
            || self.machine.resolving() > 0
            || self.swaps.has_deadlines()
            || self.sharing.has_deadlines()
            || self.locks.has_deadlines()
    }
}
