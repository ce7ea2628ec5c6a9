//! The process that makes pages move: it uses pages from one rack until they have moved there, then
//! from the other one.

use std::path::PathBuf;

use anyhow::Context;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};

use super::obey;
use crate::cpu::pin_self;
use crate::swap::RACKS;

/// Pages that move: as many as can move at the same time.
const PAGES: usize = 8;
/// Uses of each page before the next page.
const USES: usize = 16;

/// Runs as that process. Argument: the pool's folder.
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
            // A page that is only read would be shared instead of moved.
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
