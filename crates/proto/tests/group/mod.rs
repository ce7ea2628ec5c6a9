//! A small world of 3 to 8 racks: programs that run the machine of a multicast, memory that other
//! racks read, messages that are late or lost, kills, pauses and links that fail. A run follows
//! from its seed.

pub(crate) mod memory;
mod shell;

use std::collections::{BTreeMap, BTreeSet};

use memory::Memory;
use rackpool_model::RackId;
use rackpool_proto::Time;
use rackpool_proto::multicast::event::{Failure, MulticastEvent};
use rackpool_proto::multicast::member::Stored;
use rackpool_proto::multicast::participant::Participant;
use rackpool_proto::multicast::schedule::Schedule;
use rackpool_proto::multicast::{Block, Group, GroupMember, MulticastRules, Version, Visibility};
use rackpool_proto::planted_bugs::Bug;
use rackpool_sync::SplitMix64;

use crate::plant::Plant;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// A multicast of the world takes milliseconds; with silent racks, some times the grace time.
const LIMIT: u64 = 60_000 * MS;

/// What happens in the world.
#[derive(Clone, Debug)]
enum Happening {
    /// An event for a program, if it still runs.
    Event(MulticastEvent),
    /// The program's machine may have a deadline.
    Wake,
    /// A one-sided read of a block reaches its source.
    ReadBytes {
        from: RackId,
        block: Block,
    },
    /// The bytes of a read arrive.
    ReadEnds {
        from: RackId,
        block: Block,
        bytes: Option<u64>,
    },
    LookEnds {
        from: RackId,
        word: u32,
    },
    Publishes,
    /// The program is killed. Its rack's memory stays, and can be read.
    Kill,
    /// The rack goes down with its memory.
    Down,
}

/// A running program.
struct Program {
    machine: Participant<Plant>,
    /// Counts the programs of the rack: what an earlier one began is not reported to this one.
    life: u32,
    reads: BTreeSet<Block>,
    /// Events before this time are delivered at this time.
    paused_until: u64,
    result: Option<Result<(), Failure>>,
}

pub(crate) struct World {
    now: u64,
    draw: SplitMix64,
    group: Group,
    bugs: Plant,
    queue: BTreeMap<(u64, u64), (usize, u32, Happening)>,
    count: u64,
    memories: Vec<Memory>,
    programs: Vec<Option<Program>>,
    lives: Vec<u32>,
    /// When the last message of a pair arrives: messages do not overtake each other.
    last_arrival: BTreeMap<(usize, usize), u64>,
    /// Racks that are down.
    down: BTreeSet<usize>,
    /// Pairs of a reader and a rack that it can't read.
    cut: BTreeSet<(usize, usize)>,
    loss_percent: u64,
    is_published: bool,
    /// The number of blocks that were read in this multicast.
    pub(crate) blocks_read: u64,
    pub(crate) seen: Seen,
    violation: Option<String>,
}

/// What a run went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Epochs after the first of a multicast.
    pub(crate) later_epochs: u32,
    /// Epochs that another rack than the root began.
    pub(crate) takeovers: u32,
    /// Reports of members that can't read a source.
    pub(crate) stuck: u32,
    /// Racks that got the object after the root was gone.
    pub(crate) without_root: u32,
    /// Racks that failed since a block was lost.
    pub(crate) no_plan: u32,
    /// Racks that failed otherwise.
    pub(crate) failed: u32,
}

impl Seen {
    pub(crate) const fn add(&mut self, more: &Self) {
        self.later_epochs += more.later_epochs;
        self.takeovers += more.takeovers;
        self.stuck += more.stuck;
        self.without_root += more.without_root;
        self.no_plan += more.no_plan;
        self.failed += more.failed;
    }
}

/// How much goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    None,
    Some,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut draw = SplitMix64::new(seed);
        let racks = 3 + draw.draw() % 6;
        let blocks = 1 + u32::try_from(draw.draw() % 12).unwrap_or(0);
        let pod = 1 + draw.draw() % 4;
        let members = (0..racks).map(|rack| GroupMember {
            rack: RackId(u16::try_from(rack).unwrap_or(0)),
            pod: u16::try_from(rack / pod).unwrap_or(0),
        });
        let schedule = Schedule::ALL[usize::try_from(draw.draw() % 6).unwrap_or(0)];
        let visibility = [Visibility::Each, Visibility::Together];
        let visibility = visibility[usize::try_from(draw.draw() % 2).unwrap_or(0)];
        let (members, version) = (members.collect(), Version(1));
        let group = Group { members, version, blocks, schedule, visibility };
        let empty = |member: &GroupMember| Memory::empty(member.rack, Version(0), blocks);
        let memories: Vec<_> = group.members.iter().map(empty).collect();
        Self {
            now: 0,
            draw,
            bugs: Plant(bug),
            queue: BTreeMap::new(),
            count: 0,
            programs: memories.iter().map(|_| None).collect(),
            lives: vec![0; memories.len()],
            memories,
            group,
            last_arrival: BTreeMap::new(),
            down: BTreeSet::new(),
            cut: BTreeSet::new(),
            loss_percent: 0,
            is_published: false,
            blocks_read: 0,
            seen: Seen::default(),
            violation: None,
        }
    }

    /// Runs one multicast of the seed, then, with what kills have left, another one: of the same
    /// object, or of one that was made under its id after it was deleted.
    pub(crate) fn run(seed: u64, bug: Option<Bug>) -> Result<Seen, String> {
        let mut world = Self::new(seed, bug);
        world.multicast(Faults::Some)?;
        if world.below(2) == 0 {
            world.group.version = Version(2);
        }
        world.restart();
        let faults =
            [Faults::None, Faults::Some][usize::try_from(world.draw.draw() % 2).unwrap_or(0)];
        world.multicast(faults)?;
        Ok(world.seen)
    }

    /// Racks that were down are up again, without what they had.
    pub(crate) fn restart(&mut self) {
        self.down.clear();
    }

    pub(crate) const fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn count_of(&self, rack: usize) -> u32 {
        self.memories[rack].map.count()
    }

    /// Runs one multicast to its end.
    pub(crate) fn multicast(&mut self, faults: Faults) -> Result<(), String> {
        self.queue.clear();
        self.last_arrival.clear();
        self.cut.clear();
        (self.is_published, self.blocks_read) = (false, 0);
        self.memories[0].fill(self.group.version);
        for rack in 0..self.programs.len() {
            self.start(rack);
        }
        if faults == Faults::Some {
            self.plan_faults();
        } else {
            self.loss_percent = 0;
        }
        let end = self.now + LIMIT;
        while let Some(((at, _), (rack, life, happening))) = self.queue.pop_first() {
            if at > end || self.violation.is_some() {
                break;
            }
            self.now = at;
            self.happen(rack, life, happening);
        }
        self.check_end(faults);
        self.violation.take().map_or(Ok(()), Err)
    }

    /// Starts the program of a rack with what the memory has.
    fn start(&mut self, rack: usize) {
        let memory = &self.memories[rack];
        let stored = Stored { version: memory.version, map: memory.map.clone() };
        let (now, own) = (Time::from_nanos(self.now), memory.rack);
        let (group, rules) = (self.group.clone(), MulticastRules::DEFAULT);
        let machine = Participant::new(now, own, group, Some(stored), rules, self.bugs);
        let memory = &mut self.memories[rack];
        (memory.version, memory.map) = (self.group.version, machine.map().clone());
        memory.is_visible = rack == 0;
        if let Some(block) = memory.wrong(self.group.version) {
            self.violate(format!("rack {rack} resumes with {block:?} of another object"));
        }
        self.lives[rack] += 1;
        let life = self.lives[rack];
        self.programs[rack] =
            Some(Program { machine, life, reads: BTreeSet::new(), paused_until: 0, result: None });
        self.act(rack);
    }

    /// Kills, pauses and failing links within the time that a multicast takes.
    fn plan_faults(&mut self) {
        let racks = self.programs.len();
        self.loss_percent = [0, 0, 10, 30][self.below(4)];
        let span = 200 * US * (u64::from(self.group.blocks) + 6);
        for _ in 0..self.below(4) {
            let (rack, at) = (self.below(racks), self.now + self.draw.draw() % span);
            let fault = [Happening::Kill, Happening::Down][self.below(2)].clone();
            self.queue_at(at, rack, 0, fault);
        }
        if self.below(3) == 0 {
            let pause = self.draw.draw() % (1000 * MS);
            let (rack, now) = (self.below(racks), self.now);
            if let Some(program) = &mut self.programs[rack] {
                program.paused_until = now + pause;
            }
        }
        if self.below(4) == 0 {
            let pair = (self.below(racks), self.below(racks));
            self.cut.insert(pair);
        }
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.draw.draw() % count as u64).unwrap_or(0)
    }

    fn queue_at(&mut self, at: u64, rack: usize, life: u32, happening: Happening) {
        self.queue.insert((at, self.count), (rack, life, happening));
        self.count += 1;
    }

    fn violate(&mut self, violation: String) {
        self.violation.get_or_insert(violation);
    }

    /// What holds when nothing is left to happen.
    fn check_end(&mut self, faults: Faults) {
        let version = self.group.version;
        for rack in 0..self.programs.len() {
            let Some(program) = &self.programs[rack] else { continue };
            let result = program.result;
            let is_complete = self.memories[rack].is_complete(version);
            match result {
                None => self.violate(format!("rack {rack} has not ended")),
                Some(Ok(())) if !is_complete => {
                    self.violate(format!("rack {rack} ended without the object"));
                }
                Some(Ok(())) if !self.memories[rack].is_visible => {
                    self.violate(format!("rack {rack} does not show the object"));
                }
                Some(Err(failure)) if faults == Faults::None => {
                    self.violate(format!("rack {rack} failed without a fault: {failure}"));
                }
                Some(Ok(())) => self.seen.without_root += u32::from(self.programs[0].is_none()),
                Some(Err(Failure::NoPlan(_))) => self.seen.no_plan += 1,
                Some(Err(_)) => self.seen.failed += 1,
            }
        }
    }
}
