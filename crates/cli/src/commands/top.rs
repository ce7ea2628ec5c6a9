//! `rackpool top`: what a pool does, live.

mod frame;
mod rates;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use rackpool_wire::control::RackStatus;
use rackpool_wire::history::PageHeat;
use rackpool_wire::metadata::{Member, PoolStatus};

use super::racks::{Reach, WhichPool, own_addresses, rack_status, reach, top_pages};
use super::signals::Interrupts;
use crate::MetadataServer;

/// What is shown, and how often.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    which: WhichPool,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// Hottest pages to show, at most.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub pages: u16,
    /// Print once and end; that is what happens when the output is no terminal.
    #[arg(long)]
    pub once: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds from 0.1 to 3600".into()),
    }
}

/// A look at one rack.
#[derive(Clone, Debug)]
pub(super) struct RackLook {
    pub(super) member: Member,
    /// What its daemon says, or why it says nothing.
    pub(super) status: Result<RackStatus, String>,
    pub(super) pages: Vec<PageHeat>,
}

/// A look at the pool.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) address: String,
    pub(super) pool: PoolStatus,
    pub(super) racks: Vec<RackLook>,
}

/// Shows the pool until it is interrupted.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let server = options.which.server()?;
    let first = look(&server, options.pages)?;
    let interval = Duration::from_secs_f64(options.interval);
    if options.once || !std::io::stdout().is_terminal() {
        // Rates need two looks.
        std::thread::sleep(interval);
        let second = look(&server, options.pages)?;
        print!("{}", frame::text(&first, &second, options.pages, None));
        return Ok(());
    }
    let interrupts = Interrupts::catch()?;
    let mut screen = Screen::open()?;
    let mut before = first;
    let mut due = before.at + interval;
    let ended = interrupts.wait(|| {
        if Instant::now() < due {
            return None;
        }
        due = Instant::now() + interval;
        let text = match look(&server, options.pages) {
            Ok(now) => {
                let text = frame::text(&before, &now, options.pages, Some(screen.size()));
                before = now;
                text
            }
            Err(error) => format!("{error:#}\n(trying again, Ctrl-C ends)\n"),
        };
        screen.show(&text).err()
    })?;
    drop(screen);
    match ended {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

fn look(server: &MetadataServer, pages: u16) -> anyhow::Result<Look> {
    let pool = server.status()?;
    let own = own_addresses();
    let racks = pool.members.iter().map(|member| {
        let (status, pages) = match reach(member, &own) {
            Reach::Here => match rack_status(&member.control_path) {
                Ok(status) => {
                    (Ok(status), top_pages(&member.control_path, pages).unwrap_or_default())
                }
                Err(error) => (Err(format!("silent: {error:#}")), Vec::new()),
            },
            Reach::Elsewhere => {
                (Err(format!("on another host, {}", member.fabric_address)), Vec::new())
            }
            Reach::Down => (Err("down: its lease has run out".into()), Vec::new()),
        };
        RackLook { member: member.clone(), status, pages }
    });
    let racks = racks.collect();
    Ok(Look { at: Instant::now(), address: server.address().to_owned(), pool, racks })
}

/// The terminal's other screen, which goes when this is dropped.
struct Screen(console::Term);

impl Screen {
    fn open() -> std::io::Result<Self> {
        let mut term = console::Term::stdout();
        term.write_all(b"\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J")?;
        Ok(Self(term))
    }

    /// Columns and lines.
    fn size(&self) -> (usize, usize) {
        let (lines, columns) = self.0.size();
        (columns.into(), lines.into())
    }

    /// Draws over what is there, line by line, so that nothing flickers.
    fn show(&mut self, text: &str) -> std::io::Result<()> {
        let mut bytes = String::from("\x1b[H");
        let lines = text.lines().take(self.size().1.max(1));
        let lines: Vec<&str> = lines.collect();
        bytes.push_str(&lines.join("\x1b[K\r\n"));
        bytes.push_str("\x1b[K\x1b[J");
        self.0.write_all(bytes.as_bytes())?;
        self.0.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.write_all(b"\x1b[?25h\x1b[?1049l");
    }
}
