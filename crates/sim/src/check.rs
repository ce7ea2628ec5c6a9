//! Checks: invariants that always hold, and those at rest.

use std::collections::BTreeMap;

use rackpool_model::{FrameId, FrameWord, PageId, PageState, PageWord};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::rack::RackEvent;

use crate::client::Client;
use crate::link::ServerLink;
use crate::roots::root_pages;
use crate::rules::{MILLI, RACKS, USED, WORDS};
use crate::world::{RackNode, World};

impl<B: Bugs> RackNode<B> {
    /// Returns true if the rack knows that it is registered.
    fn is_member(&self) -> bool {
        self.link.as_ref().is_some_and(ServerLink::is_serving)
    }

    /// Returns the numbers of swaps, of records, of quiesces and sharings, and of requests; `None`
    /// while the daemon is down.
    fn under_way(&self) -> Option<[usize; 4]> {
        let daemon = self.daemon.as_ref()?;
        let written = self.memory.records.iter().filter(|words| words[0] != 0).count();
        let damaged = self.damages.iter().filter(|damage| damage.words[0] != 0).count();
        let records = written - damaged;
        // A sharing ends soon after the last read of a replica.
        let quiesces = daemon.machine.quiescing() + daemon.machine.shares().len();
        Some([daemon.machine.swap().under_way(), records, quiesces, daemon.machine.swap().wants()])
    }
}

impl<B: Bugs> World<B> {
    /// The same, without what waits for an operator.
    fn under_way(&self, rack: usize) -> Option<[usize; 4]> {
        let [swaps, records, quiesces, wants] = self.racks[rack].under_way()?;
        let waiting = self.left_waiting(rack);
        Some([swaps - waiting, records - waiting, quiesces, wants])
    }

    /// Stores a page word and checks C1: one writable frame or at most two readable ones, and
    /// growing epochs.
    pub(crate) fn store(&mut self, rack: usize, frame: FrameId, word: PageWord) {
        if self.is_left_alone(rack, frame) {
            self.breaks(|| format!("rack {rack} changes {frame}, whose record is damaged"));
        }
        self.racks[rack].memory.frame(frame).word = word;
        if !word.is_readable() {
            return;
        }
        let page = word.page();
        // A page may be readable in two frames if it is writable in none.
        let of_page = |word: &PageWord| word.page() == page && word.is_readable();
        let all = || self.racks.iter().flat_map(|rack| rack.memory.all().map(|found| found.word));
        let readers = all().filter(of_page).count();
        let writers = all().filter(|word| of_page(word) && word.is_writable()).count();
        if readers > 2 || writers > 0 && readers > 1 {
            self.breaks(|| {
                format!(
                    "{page} is read in {readers} frames and written in {writers}, last in rack {rack}"
                )
            });
        }
        let epoch = word.epoch().raw();
        if let Some((old_rack, old_frame, old)) = self.lived.get(&page).copied() {
            let stays = (old_rack, old_frame) == (rack, frame.0);
            if epoch < old || (epoch == old && !stays) {
                self.breaks(|| {
                    format!("{page} had epoch {old} in rack {old_rack}, and {epoch} in rack {rack}")
                });
            }
        }
        self.lived.insert(page, (rack, frame.0, epoch));
    }

    /// Returns true if the page is writable in another rack.
    pub(crate) fn is_written_elsewhere(&self, rack: usize, page: PageId) -> bool {
        let others = self.racks.iter().enumerate().filter(|(other, _)| *other != rack);
        let mut words = others.flat_map(|(_, other)| other.memory.all());
        words.any(|found| found.word.page() == page && found.word.is_writable())
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.server.is_up()
            && self.racks.iter().all(RackNode::is_member)
            && self.server.promises.all_alive()
            && self.clients.iter().all(Client::is_idle)
            && (0..RACKS).all(|rack| self.under_way(rack) == Some([0; 4]))
            && self.object_unrest().is_none()
    }

    /// Describes what is not at rest.
    pub(crate) fn unrest(&self) -> String {
        let mut unrest = Vec::new();
        if !self.server.is_up() {
            unrest.push("the metadata server is down".to_string());
        }
        for (index, client) in self.clients.iter().enumerate() {
            if !client.is_idle() {
                let (errands, stage) = (client.errands.last(), client.waits_for());
                unrest.push(format!("client {index} has not finished: {errands:?}, {stage}"));
            }
        }
        for index in 0..RACKS {
            if !self.racks[index].is_member() || !self.server.promises.is_alive(index) {
                unrest.push(format!("rack {index} is no member"));
            }
            match self.under_way(index) {
                None => unrest.push(format!("rack {index} is down")),
                Some([0, 0, 0, 0]) => {}
                Some([swaps, records, quiesces, wants]) => unrest.push(format!(
                    "rack {index} has {swaps} swaps, {records} records, {quiesces} quiesces or sharings, {wants} wants"
                )),
            }
        }
        unrest.extend(self.object_unrest());
        unrest.join("; ")
    }

    /// Checks that at rest each page is in one frame, at the home that the metadata server names,
    /// and each frame has a page.
    pub(crate) fn check_frames(&mut self) -> Result<(), String> {
        let mut found: BTreeMap<PageId, (usize, PageState)> = BTreeMap::new();
        for (index, rack) in self.racks.iter().enumerate() {
            for FrameWord { frame, word } in rack.memory.all() {
                let state = match word.state() {
                    Some(state @ (PageState::Free | PageState::Live)) => state,
                    _ if self.is_left_alone(index, frame) => continue,
                    // A page was being freed; only the damaged record could say that no swap was
                    // moving it.
                    Some(PageState::Leaving) if self.is_damaged(index) => continue,
                    // Whether the copy is complete can't be known any more.
                    Some(PageState::Frozen) if self.is_left_behind(index, word.page()) => continue,
                    Some(PageState::Arriving) if self.is_left_waiting(index, word.page()) => {
                        continue;
                    }
                    Some(PageState::Frozen) if self.is_left_waiting(index, word.page()) => {
                        PageState::Live
                    }
                    other => {
                        return Err(format!("{frame} of rack {index} is {other:?}: it leaked"));
                    }
                };
                if let Some((other, _)) = found.insert(word.page(), (index, state)) {
                    return Err(format!("{} is in racks {other} and {index}", word.page()));
                }
            }
        }
        for rack in 0..RACKS {
            for (index, page) in (0..).zip(self.born(rack)) {
                let Some((home, state)) = found.get(&page).copied() else {
                    if self.is_stuck(page) {
                        continue;
                    }
                    return Err(format!("{page} is nowhere: it was lost"));
                };
                let said = self.home_of(page);
                if said != Some(home) {
                    return Err(format!(
                        "{page} is in rack {home}, but the metadata server says {said:?}"
                    ));
                }
                let used = index < USED || self.allocated.contains(&page);
                if (state == PageState::Live) != used {
                    return Err(format!("{page} is {state:?}"));
                }
            }
        }
        Ok(())
    }

    /// The page ids assigned to a rack.
    fn born(&self, rack: usize) -> impl Iterator<Item = PageId> + use<B> {
        let pages = self.racks[rack].pages.map(|pages| {
            let first = pages.first.0;
            first..first + pages.count
        });
        pages.into_iter().flatten().map(PageId)
    }

    /// The pages that clients use and never free.
    fn used(&self) -> Vec<PageId> {
        (0..RACKS).flat_map(|rack| self.born(rack).take(USED as usize)).collect()
    }

    /// Makes one client of each rack read every word, so that acknowledged writes must be visible.
    pub(crate) fn read_everything(&mut self) -> Result<(), String> {
        let pages = self.used().into_iter().chain(self.allocated.iter().copied());
        let pages = pages.filter(|page| !self.is_stuck(*page));
        let words = pages.flat_map(|page| (0..WORDS).map(move |word| (page, word)));
        let words: Vec<_> = words.chain(root_pages().map(|page| (page, 0))).collect();
        self.works = true;
        for client in 0..RACKS {
            self.clients[client].errands.clone_from(&words);
            self.next_step(client, 0);
        }
        Ok(())
    }

    /// Chooses a page, its home, and another rack. A rack with a damaged record may have no free
    /// frame, and then neither requests nor gives; each other rack keeps one.
    fn choose_move(&mut self) -> Option<(PageId, usize, usize)> {
        let whole = |rack: &usize| !self.is_damaged(*rack) && self.left_waiting(*rack) == 0;
        let racks: Vec<usize> = (0..RACKS).filter(whole).collect();
        let mut pages = self.used();
        pages.retain(|page| !self.is_stuck(*page));
        let homes = pages.into_iter().filter_map(|page| Some((page, self.home_of(page)?)));
        let homes: Vec<_> = homes.filter(|(_, home)| racks.contains(home)).collect();
        if homes.is_empty() || racks.len() < 2 {
            return None;
        }
        let (page, home) = homes[self.rng.below(homes.len())];
        let others: Vec<usize> = racks.into_iter().filter(|rack| *rack != home).collect();
        Some((page, home, others[self.rng.below(others.len())]))
    }

    /// Checks that after all faults a page that is hot in another rack moves there.
    pub(crate) fn move_one_page(&mut self) -> Result<(), String> {
        let Some((page, home, rack)) = self.choose_move() else { return Ok(()) };
        for _ in 0..100 {
            self.feed(rack, RackEvent::Heated { page, milli: u64::MAX, read_hot: false });
            let end = self.now + 20 * MILLI;
            self.run_until(end, |_| false)?;
            self.now = end;
            if self.home_of(page) == Some(rack) {
                return Ok(());
            }
        }
        Err(format!("{page} does not move from rack {home} to rack {rack} any more"))
    }
}
