//! The event loop that drives synthetic load through a machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::OptionsError;
use crate::assumptions::{CARD_BUFFER_NS, DMA_LINES_IN_FLIGHT};
use crate::forwarder::{Forwarder, RandomReader};
use crate::machine::{LINE_BYTES, Machine, MachineOptions};
use crate::mask::WayMask;
use crate::outcome::{Counters, ForwarderOutcome, Outcome};
use crate::port::{Packet, Port};
use crate::rng::Rng;
use crate::timing::{Picoseconds, core_ns, device_ns, picoseconds, whole};

/// First line of the addresses of background evictions, above those of all buffers.
const BACKGROUND_BASE: u64 = 1 << 50;

/// The most background evictions of a core between two packets.
const MAX_BACKGROUND_LINES: u64 = 10_000;

/// What happens next. Numbers are indices of ports, of cores within a port, and of readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A packet arrives at the card.
    Arrival(usize),
    /// The card has written a packet for the core.
    Written(usize, usize),
    /// The core has processed its packet.
    Processed(usize, usize),
    /// The card has sent its packet.
    Sent(usize),
    /// The cache-hungry program reads a line.
    Read(usize),
}

/// A cache-hungry program and its core.
#[derive(Debug)]
struct Reader {
    core: usize,
    base: u64,
    lines: u64,
    gap: Picoseconds,
    rng: Rng,
}

/// A machine, the load on it, and the events to come.
#[derive(Debug)]
pub(crate) struct EventLoop {
    machine: Machine,
    ports: Vec<Port>,
    readers: Vec<Reader>,
    events: BinaryHeap<Reverse<(Picoseconds, u64, Event)>>,
    /// Number of events scheduled; orders events of equal time.
    scheduled: u64,
    now: Picoseconds,
    measured_from: Picoseconds,
}

impl EventLoop {
    /// An event loop at the first arrival of a packet at each card. Options must be checked.
    pub(crate) fn new(
        options: &MachineOptions,
        forwarders: &[Forwarder],
        readers: &[RandomReader],
    ) -> Result<Self, OptionsError> {
        let seed = options.seed;
        let mut masks: Vec<WayMask> = Vec::new();
        let mut ports = Vec::new();
        for (number, forwarder) in (0..).zip(forwarders) {
            ports.push(Port::new(forwarder, number, masks.len(), seed));
            masks.extend((0..forwarder.cores).map(|_| forwarder.cat_mask));
        }
        let mut hungry = Vec::new();
        for (number, reader) in (0..).zip(readers) {
            hungry.push(Reader {
                core: masks.len(),
                base: (masks.len() as u64 + 1) << 32,
                lines: reader.working_set_bytes / LINE_BYTES,
                gap: picoseconds(1000.0 / reader.reads_per_us).max(1),
                rng: Rng::new(seed, 1_000_000 + number),
            });
            masks.push(reader.cat_mask);
        }
        let programs = program(forwarders.len() + readers.len());
        let mut events = Self {
            machine: Machine::new(options, &masks, programs)?,
            ports,
            readers: hungry,
            events: BinaryHeap::new(),
            scheduled: 0,
            now: 0,
            measured_from: 0,
        };
        for port in 0..events.ports.len() {
            events.schedule(0, Event::Arrival(port));
        }
        for reader in 0..events.readers.len() {
            events.schedule(0, Event::Read(reader));
        }
        Ok(events)
    }

    /// Runs until each port has used each of its buffers `rounds` times on average.
    pub(crate) fn run_rounds(&mut self, rounds: u32) {
        let done = |port: &Port| {
            !port.filling && port.latencies.len() as u64 >= port.buffers * u64::from(rounds)
        };
        while !self.ports.iter().all(done) {
            let Some(Reverse((time, _, event))) = self.events.pop() else { return };
            self.now = time;
            match event {
                Event::Arrival(port) => self.arrive(port),
                Event::Written(port, core) => self.start_processing(port, core),
                Event::Processed(port, core) => self.finish_processing(port, core),
                Event::Sent(port) => self.finish_sending(port),
                Event::Read(reader) => self.read(reader),
            }
        }
    }

    /// Starts the measurement: counters become zero, caches and rings stay as they are.
    pub(crate) fn start_measurement(&mut self) {
        self.measured_from = self.now;
        self.machine.reset_counters();
        self.ports.iter_mut().for_each(Port::reset_counts);
    }

    /// What has been counted since the start of the measurement.
    pub(crate) fn outcome(&mut self) -> Outcome {
        let measured = self.now - self.measured_from;
        let mut total = Counters::default();
        let mut counters = |machine: &Machine, number: usize| {
            let counters = machine.counters(program(number));
            total += counters;
            counters
        };
        let mut forwarders = Vec::new();
        for (number, port) in self.ports.iter_mut().enumerate() {
            let counters = counters(&self.machine, number);
            forwarders.push(ForwarderOutcome { counters, ..port.outcome(measured) });
        }
        let first = forwarders.len();
        let readers =
            (0..self.readers.len()).map(|number| counters(&self.machine, first + number)).collect();
        Outcome { forwarders, readers, total, measured_ns: measured as f64 / 1000.0 }
    }

    fn schedule(&mut self, time: Picoseconds, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((time, self.scheduled, event)));
    }

    /// A packet arrives: the card takes a descriptor, pauses the sender, or drops the packet.
    fn arrive(&mut self, number: usize) {
        let port = &mut self.ports[number];
        let core = port.pick_core();
        if port.filling && port.cores[core].posted.is_empty() {
            port.filling = false;
            self.start_sending(number);
        }
        let port = &mut self.ports[number];
        let backlog = port.write_free_at.saturating_sub(self.now);
        let excess = backlog.saturating_sub(picoseconds(CARD_BUFFER_NS));
        if port.options.pause && excess > 0 {
            port.pauses += 1;
            port.paused_time += excess;
            self.schedule(self.now + excess, Event::Arrival(number));
            return;
        }
        if port.options.pause && port.cores[core].posted.is_empty() {
            port.pauses += 1;
            port.paused = Some((self.now, core));
            return;
        }
        if excess > 0 {
            port.drops += 1;
        } else if let Some(buffer) = port.cores[core].posted.pop_front() {
            self.write_packet(number, core, buffer);
        } else {
            port.drops += 1;
        }
        let next = self.now + self.ports[number].gap;
        self.schedule(next, Event::Arrival(number));
    }

    /// The card writes an arrived packet to the buffer at line `first_line`.
    fn write_packet(&mut self, number: usize, core: usize, first_line: u64) {
        let port = &mut self.ports[number];
        let lines = port.options.lines_per_packet();
        let path = port.options.path;
        let time_ns: f64 = (first_line..first_line + lines)
            .map(|line| {
                let level = self.machine.device_write(line, program(number), path);
                device_ns(level, path)
            })
            .sum();
        let start = self.now.max(port.write_free_at);
        let written = start + picoseconds(time_ns / DMA_LINES_IN_FLIGHT);
        port.write_free_at = written;
        port.cores[core].received.push_back(Packet { first_line, arrived: self.now, written });
        self.schedule(written, Event::Written(number, core));
    }

    /// An idle core takes its next packet, if one is there.
    fn start_processing(&mut self, number: usize, core_number: usize) {
        let port = &mut self.ports[number];
        let core = &mut port.cores[core_number];
        if core.current.is_some() {
            return;
        }
        let Some(packet) = core.received.pop_front_if(|packet| packet.written <= self.now) else {
            return;
        };
        core.current = Some(packet);
        core.posted.extend(core.free.pop());
        let idle = core.received.is_empty() && !port.filling;
        let machine_core = port.first_core + core_number;
        let path = port.options.path;
        let processing_ns = port.options.processing_ns();
        let header = packet.first_line;
        let level = self.machine.core_access(machine_core, header, true, program(number));
        if idle {
            self.read_ahead(number, machine_core, header);
        }
        self.evict_background(number, core_number);
        let done = self.now + picoseconds(processing_ns + core_ns(level, path));
        self.schedule(done, Event::Processed(number, core_number));
        self.resume_sender(number, core_number);
    }

    /// A core with idle time moves random lines of the packet at `header` through its L2.
    fn read_ahead(&mut self, number: usize, machine_core: usize, header: u64) {
        let port = &mut self.ports[number];
        let others = port.options.lines_per_packet() - 1;
        let mut left = port.options.read_ahead_lines;
        while others > 0 && port.read_ahead.unit() < left {
            left -= 1.0;
            let line = header + 1 + port.read_ahead.below(others);
            self.machine.core_prefetch(machine_core, line, program(number));
        }
    }

    /// The L2 of a core evicts the lines of its other work since the last packet.
    fn evict_background(&mut self, number: usize, core_number: usize) {
        let port = &mut self.ports[number];
        let machine_core = port.first_core + core_number;
        let now_us = self.now as f64 / 1e6;
        let due = whole(now_us * port.options.background_lines_per_us);
        let core = &mut port.cores[core_number];
        let first = core.background_lines.max(due.saturating_sub(MAX_BACKGROUND_LINES));
        let base = BACKGROUND_BASE + ((machine_core as u64) << 40);
        for count in first..due {
            self.machine.core_eviction(machine_core, base + count, program(number));
        }
        core.background_lines = due;
    }

    /// Ends a pause of the sender that waits for a descriptor of `core`.
    fn resume_sender(&mut self, number: usize, core: usize) {
        let port = &mut self.ports[number];
        let Some((since, _)) = port.paused.take_if(|(_, waiting_for)| *waiting_for == core) else {
            return;
        };
        port.paused_time += self.now - since.max(self.measured_from);
        if let Some(buffer) = port.cores[core].posted.pop_front() {
            self.write_packet(number, core, buffer);
        }
        let next = self.now + self.ports[number].gap;
        self.schedule(next, Event::Arrival(number));
    }

    /// A core has processed its packet and queues it for sending, or waits for a TX descriptor.
    fn finish_processing(&mut self, number: usize, core_number: usize) {
        let port = &mut self.ports[number];
        let limit = port.options.tx_descriptors as usize;
        let core = &mut port.cores[core_number];
        core.blocked = core.tx.len() >= limit;
        if core.blocked {
            return;
        }
        core.tx.extend(core.current.take());
        self.start_sending(number);
        self.start_processing(number, core_number);
    }

    /// An idle card reads its next packet and sends it.
    fn start_sending(&mut self, number: usize) {
        let port = &mut self.ports[number];
        if port.filling || port.sending.is_some() {
            return;
        }
        let Some((core, packet)) = port.next_to_send() else { return };
        port.sending = Some((core, packet));
        let lines = port.options.lines_per_packet();
        let path = port.options.path;
        let time_ns: f64 = (packet.first_line..packet.first_line + lines)
            .map(|line| device_ns(self.machine.device_read(line, program(number)), path))
            .sum();
        let done = self.now + port.send_time.max(picoseconds(time_ns / DMA_LINES_IN_FLIGHT));
        self.schedule(done, Event::Sent(number));
        if self.ports[number].cores[core].blocked {
            self.finish_processing(number, core);
        }
    }

    /// The card has sent a packet; its buffer becomes free.
    fn finish_sending(&mut self, number: usize) {
        let port = &mut self.ports[number];
        if let Some((core, packet)) = port.sending.take() {
            port.cores[core].free.push(packet.first_line);
            port.latencies.push(self.now - packet.arrived);
        }
        self.start_sending(number);
    }

    fn read(&mut self, number: usize) {
        let reader = &mut self.readers[number];
        let line = reader.base + reader.rng.below(reader.lines);
        let core = reader.core;
        let next = self.now + reader.gap;
        self.machine.core_access(core, line, false, program(self.ports.len() + number));
        self.schedule(next, Event::Read(number));
    }
}

/// The number of a program in the machine; `check` bounds it.
fn program(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
