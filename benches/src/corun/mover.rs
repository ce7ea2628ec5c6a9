//! The process that has pages moved: it uses them from one rack until they have come there, then
//! from the other one.

use std::path::PathBuf;

use anyhow::Context;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};

use super::obey;
use crate::cpu::pin_self;
use crate::swap::RACKS;

/// Pages that move: as many as move at once.
const PAGES: usize = 8;
/// Uses of each before the next one has its turn.
const USES: usize = 16;

/// Is that process: the pool's folder.
pub(super) fn be_mover(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let dir = PathBuf::from(arguments.next().context("the pool's folder")?);
    let open = |rack: RackId| Pool::open(ClientOptions::new(&dir, rack));
    let pools = [open(RACKS[0])?, open(RACKS[1])?];
    pin_self(1)?;
    let mut pages = (0..PAGES)
        .map(|_| Ok((pools[0].alloc(pools[0].page_bytes())?, 1)))
        .collect::<anyhow::Result<Vec<(GlobalAddr, usize)>>>()?;
    obey(|_| {
        let mut moved = 0;
        let mut bytes = [0; 64];
        for (page, user) in &mut pages {
            let pool = &pools[*user];
            // Of a page that is only read its reader would keep a copy instead.
            for _ in 0..USES {
                pool.read(*page, &mut bytes)?;
                pool.write(*page, &bytes)?;
            }
            if pool.is_local(*page)? {
                *user = 1 - *user;
                moved += 1;
            }
        }
        Ok(moved)
    })
}
