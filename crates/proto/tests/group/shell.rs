//! Executes the machines' actions, and checks what holds at each.

use rackpool_model::RackId;
use rackpool_proto::Time;
use rackpool_proto::multicast::Visibility;
use rackpool_proto::multicast::event::{
    Failure, MulticastAction, MulticastEvent, MulticastMessage, Status,
};
use rackpool_proto::multicast::plan::PlanError;

use super::{Happening, MS, Program, US, World};

fn index(rack: RackId) -> usize {
    usize::from(rack.0)
}

impl World {
    pub(super) fn happen(&mut self, rack: usize, life: u32, happening: Happening) {
        match happening {
            Happening::Kill => self.kill(rack, false),
            Happening::Down => self.kill(rack, true),
            _ => self.of_program(rack, life, happening),
        }
    }

    fn of_program(&mut self, rack: usize, life: u32, happening: Happening) {
        let now = self.now;
        let Some(program) = self.programs[rack].as_mut().filter(|program| program.life == life)
        else {
            return;
        };
        let is_of_hardware = matches!(happening, Happening::ReadBytes { .. });
        if program.paused_until > now && !is_of_hardware {
            let at = program.paused_until;
            self.queue_at(at, rack, life, happening);
            return;
        }
        match happening {
            Happening::Event(event) => self.handle(rack, event),
            Happening::Wake => {
                let due = program.machine.deadline();
                if due.is_some_and(|due| due.as_nanos() <= now) {
                    self.handle(rack, MulticastEvent::DeadlinePassed);
                }
            }
            Happening::ReadBytes { from, block } => {
                let is_readable = self.is_readable(rack, from);
                let bytes = self.memories[index(from)].bytes[block.0 as usize];
                let bytes = is_readable.then_some(bytes);
                let at = now + self.draw.draw() % (100 * US);
                self.queue_at(at, rack, life, Happening::ReadEnds { from, block, bytes });
            }
            Happening::ReadEnds { from, block, bytes } => {
                program.reads.remove(&block);
                let is_readable = bytes.is_some() && self.is_readable(rack, from);
                if let Some(bytes) = bytes {
                    self.memories[rack].bytes[block.0 as usize] = bytes;
                }
                let found = is_readable.then(|| self.memories[index(from)].version);
                self.blocks_read += 1;
                self.handle(rack, MulticastEvent::BlockRead { from, block, found });
            }
            Happening::LookEnds { from, word } => {
                let memory = &self.memories[index(from)];
                let bits = memory.map.words().get(word as usize).copied().unwrap_or(0);
                let found = self.is_readable(rack, from).then_some((memory.version, bits));
                self.handle(rack, MulticastEvent::Looked { from, word, found });
            }
            Happening::Publishes => {
                self.is_published = true;
                self.handle(rack, MulticastEvent::Published);
            }
            Happening::Kill | Happening::Down => {}
        }
    }

    fn is_readable(&self, reader: usize, from: RackId) -> bool {
        !self.down.contains(&index(from)) && !self.cut.contains(&(reader, index(from)))
    }

    fn kill(&mut self, rack: usize, is_down: bool) {
        if is_down {
            self.down.insert(rack);
            self.memories[rack].reuse();
        }
        if self.programs[rack].take().is_none() {
            return;
        }
        let lost = MulticastEvent::RackLost(self.memories[rack].rack);
        for other in 0..self.programs.len() {
            let Some(life) = self.programs[other].as_ref().map(|program| program.life) else {
                continue;
            };
            let at = self.now + self.draw.draw() % (5 * MS);
            self.queue_at(at, other, life, Happening::Event(lost.clone()));
        }
    }

    fn handle(&mut self, rack: usize, event: MulticastEvent) {
        let now = Time::from_nanos(self.now);
        if let Some(program) = &mut self.programs[rack] {
            program.machine.handle(now, event);
        }
        self.act(rack);
    }

    /// Executes all actions of a program.
    pub(super) fn act(&mut self, rack: usize) {
        loop {
            let Some(program) = &mut self.programs[rack] else { return };
            let life = program.life;
            let Some(action) = program.machine.poll() else { break };
            self.execute(rack, life, action);
        }
        if let Some(Program { machine, life, .. }) = &self.programs[rack]
            && let Some(due) = machine.deadline()
            && !self.all_ended()
        {
            let (at, life) = (due.as_nanos().max(self.now), *life);
            self.queue_at(at, rack, life, Happening::Wake);
        }
    }

    fn all_ended(&self) -> bool {
        self.programs.iter().flatten().all(|program| program.result.is_some())
    }

    fn execute(&mut self, rack: usize, life: u32, action: MulticastAction) {
        let (now, version) = (self.now, self.group.version);
        match action {
            MulticastAction::Send(to, message) => {
                self.see(rack, &message);
                // Now and then a packet has to be sent again.
                let longest = if self.below(20) == 0 { 20 * MS } else { 100 * US };
                let arrival = now + 5 * US + self.draw.draw() % longest;
                let last = self.last_arrival.entry((rack, index(to))).or_insert(0);
                *last = arrival.max(*last);
                let (at, from) = (*last, self.memories[rack].rack);
                let is_lost = self.draw.draw() % 100 < self.loss_percent;
                let target = self.programs[index(to)].as_ref().map(|program| program.life);
                if let Some(life) = target.filter(|_| !is_lost) {
                    let event = MulticastEvent::Message(from, message);
                    self.queue_at(at, index(to), life, Happening::Event(event));
                }
            }
            MulticastAction::Look { from, word } => {
                let at = now + 2 * US + self.draw.draw() % (20 * US);
                self.queue_at(at, rack, life, Happening::LookEnds { from, word });
            }
            MulticastAction::Read { from, block } => {
                if let Some(program) = &mut self.programs[rack] {
                    let is_first = program.reads.insert(block);
                    let count = program.reads.len();
                    if !is_first || count > 2 {
                        self.violate(format!(
                            "rack {rack} reads {block:?} twice, or {count} blocks"
                        ));
                    }
                }
                if self.memories[rack].map.has(block) && self.bugs.0.is_none() {
                    self.violate(format!("rack {rack} reads {block:?} again"));
                }
                let at = now + 50 * US + self.draw.draw() % (50 * US);
                self.queue_at(at, rack, life, Happening::ReadBytes { from, block });
            }
            MulticastAction::MarkReceived(block) => {
                if self.memories[rack].map.has(block) {
                    self.violate(format!("rack {rack} received {block:?} twice"));
                }
                self.memories[rack].map.add(block);
                if self.memories[rack].wrong(version).is_some() {
                    self.violate(format!("rack {rack} counts {block:?} without its bytes"));
                }
            }
            MulticastAction::Verify => {
                let is_right = self.memories[rack].is_complete(version);
                let at = now + self.draw.draw() % (200 * US);
                let event = MulticastEvent::Verified(is_right);
                self.queue_at(at, rack, life, Happening::Event(event));
            }
            MulticastAction::Publish => {
                self.check_published();
                let at = now + self.draw.draw() % (200 * US);
                self.queue_at(at, rack, life, Happening::Publishes);
            }
            MulticastAction::Show => self.show(rack),
            MulticastAction::End(result) => self.end(rack, result),
            MulticastAction::Report(results) => {
                for (member, result) in results {
                    self.check_report(index(member), result);
                }
            }
        }
    }

    fn see(&mut self, rack: usize, message: &MulticastMessage) {
        match message {
            MulticastMessage::Wedge(epoch) if epoch.number > 1 => {
                self.seen.later_epochs += 1;
                self.seen.takeovers += u32::from(rack != 0);
            }
            MulticastMessage::Report(_, Status::Stuck(_)) => self.seen.stuck += 1,
            _ => {}
        }
    }

    /// Everybody whose program runs, and who can read everybody, has the object.
    fn check_published(&mut self) {
        for rack in 0..self.programs.len() {
            let is_cut = self.cut.iter().any(|(reader, _)| *reader == rack);
            let has = self.memories[rack].is_complete(self.group.version);
            if self.programs[rack].is_some() && !is_cut && !has {
                self.violate(format!("published while rack {rack} lacks blocks"));
            }
        }
    }

    fn show(&mut self, rack: usize) {
        if !self.memories[rack].is_complete(self.group.version) {
            self.violate(format!("rack {rack} shows an incomplete object"));
        }
        if self.group.visibility == Visibility::Together && !self.is_published {
            self.violate(format!("rack {rack} shows the object before it is published"));
        }
        self.memories[rack].is_visible = true;
    }

    fn end(&mut self, rack: usize, result: Result<(), Failure>) {
        let Some(program) = &mut self.programs[rack] else { return };
        let reads = program.reads.len();
        let is_second = program.result.replace(result).is_some();
        if is_second {
            self.violate(format!("rack {rack} ended twice"));
        }
        if reads > 0 {
            self.violate(format!("rack {rack} ended with a read under way"));
        }
        if result.is_err() && !self.memories[rack].is_visible {
            self.memories[rack].reuse();
        }
    }

    fn check_report(&mut self, rack: usize, result: Result<(), Failure>) {
        let version = self.group.version;
        let is_running = self.programs[rack].is_some();
        match result {
            Ok(()) if is_running && !self.memories[rack].is_complete(version) => {
                self.violate(format!("rack {rack} is reported complete and is not"));
            }
            Err(Failure::NoPlan(PlanError::BlockLost { block })) => {
                let running = self.programs.iter().zip(&self.memories);
                let has = |(program, memory): (&Option<Program>, &super::Memory)| {
                    program.is_some() && memory.version == version && memory.map.has(block)
                };
                if self.cut.is_empty() && running.into_iter().any(has) {
                    self.violate(format!("{block:?} is reported lost and is there"));
                }
            }
            Err(failure @ (Failure::Lost | Failure::Silent)) if is_running => {
                self.violate(format!("rack {rack} runs and is given up: {failure}"));
            }
            Err(Failure::Unreachable) if is_running && self.cut.is_empty() => {
                self.violate(format!("rack {rack} is called unreachable"));
            }
            Err(Failure::Damaged) => self.violate(format!("rack {rack} is called damaged")),
            _ => {}
        }
    }
}
