use std::collections::BTreeMap;
use std::time::Duration;

use rackpool_model::{Epoch, GlobalAddr, Incarnation, MemoryId, PageId, RackId};
use rackpool_proto::Time;
use rackpool_wire::metadata::{MetadataRequest, RackAnnouncement};
use rackpool_wire::swap::{PageLife, SwapId, ToServer};

/// One line of a transcript: a word and `key=value` pairs.
pub(super) enum Command {
    /// `at MS`: advances the clock.
    At(Time),
    /// `by-hand`: from here on batches are printed and wait for `commit` or `fail`.
    CommitsByHand,
    /// A request; `from=N` names the connection, 1 unless given.
    Ask { from: u64, request: MetadataRequest },
    /// `commit`: the batch is durable.
    Commit,
    /// `fail REASON`: the commit fails.
    Fail(String),
    /// `restart`: the machine is restored from what is durable.
    Restart,
    /// `deadline`: prints the machine's deadline.
    Deadline,
}

struct Words<'a>(BTreeMap<&'a str, &'a str>);

impl Words<'_> {
    fn text(&self, key: &str, default: &str) -> String {
        self.0.get(key).copied().unwrap_or(default).replace("NAME", &"n".repeat(256))
    }

    fn number(&self, key: &str, default: u64) -> u64 {
        self.0.get(key).map_or(default, |value| value.parse().expect("a number"))
    }

    fn addr(&self, key: &str) -> Option<GlobalAddr> {
        let value = self.0.get(key).expect("expected= and new=");
        (*value != "none").then(|| GlobalAddr::from_raw(value.parse().expect("an address")))
    }

    fn rack(&self) -> RackId {
        RackId(u16::try_from(self.number("rack", 1)).unwrap())
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.number("incarnation", 1))
    }

    fn page(&self, key: &str) -> PageId {
        PageId(u32::try_from(self.number(key, 0)).unwrap())
    }

    /// Parses `seen=1.4` or `swap=1.4`: a number printed as boot and count.
    fn counted(&self, key: &str) -> u64 {
        self.0.get(key).map_or(0, |number| {
            let (boot, count) = number.split_once('.').expect("boot.count");
            boot.parse::<u64>().unwrap() << 32 | count.parse::<u64>().unwrap()
        })
    }

    fn life(&self, page: &str, epoch: &str) -> PageLife {
        let epoch = Epoch::new(u32::try_from(self.number(epoch, 1)).unwrap());
        PageLife { page: self.page(page), epoch }
    }

    fn of_swap(&self, word: &str) -> ToServer {
        let swap = SwapId(self.counted("swap"));
        match word {
            "want" => ToServer::Request {
                page: self.page("page"),
                offered: self.page("offered"),
                nonce: self.number("nonce", 1),
            },
            "end" => ToServer::Abort { swap },
            "outcome" => ToServer::Outcome { swap, page: self.page("page") },
            _ => ToServer::Commit {
                swap,
                page: self.life("page", "epoch"),
                offered: self.life("offered", "offered_epoch"),
            },
        }
    }

    fn announcement(&self) -> RackAnnouncement {
        RackAnnouncement {
            rack: self.rack(),
            memory: MemoryId(u128::from(self.number("memory", 1))),
            incarnation: self.incarnation(),
            frames: u32::try_from(self.number("frames", 100)).unwrap(),
            page_bytes: self.number("page_bytes", 2 << 20),
            seen: None,
            control_path: self.text("control", "/run/rack"),
            fabric_address: self.text("fabric", "tcp:7"),
        }
    }
}

impl Command {
    /// Parses a line of a transcript.
    pub(super) fn parse(line: &str) -> Self {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let at = |rest: &str| Time::ZERO.after(Duration::from_millis(rest.parse().expect("ms")));
        match word {
            "at" => return Self::At(at(rest)),
            "by-hand" => return Self::CommitsByHand,
            "commit" => return Self::Commit,
            "fail" => return Self::Fail(rest.into()),
            "restart" => return Self::Restart,
            "deadline" => return Self::Deadline,
            _ => {}
        }
        let pair = |pair| str::split_once(pair, '=').expect("key=value");
        let words = Words(rest.split_whitespace().map(pair).collect());
        let request = match word {
            "register" => MetadataRequest::Register(words.announcement()),
            "heartbeat" => MetadataRequest::Heartbeat {
                rack: words.rack(),
                incarnation: words.incarnation(),
                free_frames: u32::try_from(words.number("free", 0)).unwrap(),
                seen_version: words.counted("seen"),
            },
            "leave" => {
                MetadataRequest::Leave { rack: words.rack(), incarnation: words.incarnation() }
            }
            "locate" => MetadataRequest::Locate { page: words.page("page") },
            "get" => MetadataRequest::GetRoot { name: words.text("name", "") },
            "put" => MetadataRequest::PutRoot {
                name: words.text("name", ""),
                expected: words.addr("expected"),
                new: words.addr("new"),
            },
            "status" => MetadataRequest::Status,
            "explain" => MetadataRequest::Explain { page: words.page("page") },
            "want" | "end" | "commit-swap" | "outcome" => MetadataRequest::Swap {
                rack: words.rack(),
                incarnation: words.incarnation(),
                message: words.of_swap(word),
            },
            other => panic!("no such command: {other}"),
        };
        Self::Ask { from: words.number("from", 1), request }
    }
}
