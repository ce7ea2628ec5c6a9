//! `rackpool top`: live metrics of a pool.

mod columns;
mod frame;
mod json;
mod keys;
mod look;
mod rates;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use rackpool_admin::MetadataServer;
use rackpool_output::{Style, chain, outln, print};

use super::signals::Interrupts;
use crate::pool_arguments::WhichPool;
use columns::Sort;
use frame::View;
use keys::{Key, Keys};
use look::{Look, look};

/// What is shown, and how often.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: WhichPool,
    /// Interval between two samples, in seconds: 0.1 to 3600.
    #[arg(long, default_value_t = 1.0, value_parser = interval)]
    pub(crate) interval: f64,
    /// Maximum number of hot pages to show: 0 to 256.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) pages: u16,
    /// Print one sample and end. This is the default if standard output is not a terminal.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print a line of JSON for each sample. docs/design/seeing.md describes the format.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses an interval in seconds.
pub(super) fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.1 to 3600".into()),
    }
}

/// Shows the pool until a signal arrives.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let server = options.which.server()?;
    let first = look(&server, options.pages)?;
    let interval = Duration::from_secs_f64(options.interval);
    if options.json {
        return print_json(options, &server, first, interval);
    }
    if options.once || !std::io::stdout().is_terminal() {
        // Rates need two samples.
        std::thread::sleep(interval);
        let second = look(&server, options.pages)?;
        let view = View {
            size: None,
            pages: options.pages,
            sort: Sort::default(),
            takes_keys: false,
            style: Style::of_stdout(),
        };
        print(format_args!("{}", frame::text(&first, &second, &view)))?;
        return Ok(());
    }
    watch(options, &server, first, interval)
}

/// Prints a line of JSON for each interval, until the reader closes the pipe or a signal arrives.
fn print_json(
    options: &Options,
    server: &MetadataServer,
    mut before: Look,
    interval: Duration,
) -> anyhow::Result<()> {
    loop {
        std::thread::sleep(interval);
        let now = look(server, options.pages)?;
        outln!("{}", json::look(&before, &now, options.pages))?;
        if options.once {
            return Ok(());
        }
        before = now;
    }
}

/// Draws on the terminal until `q` is pressed or a signal arrives.
fn watch(
    options: &Options,
    server: &MetadataServer,
    first: Look,
    interval: Duration,
) -> anyhow::Result<()> {
    let interrupts = Interrupts::catch()?;
    let keys = Keys::open();
    let mut screen = Screen::open()?;
    let mut looks = (first.clone(), first);
    let mut due = looks.1.at + interval;
    let mut sort = Sort::default();
    let mut failure = None;
    let mut size = (0, 0);
    let ended = interrupts.wait(|| {
        let pressed = keys.as_ref().map_or_else(Vec::new, Keys::pressed);
        if pressed.contains(&Key::Quit) {
            return Some(Ok(()));
        }
        pressed.iter().for_each(|key| change(&mut sort, *key));
        let is_due = Instant::now() >= due;
        if is_due {
            due = Instant::now() + interval;
            failure = None;
            match look(server, options.pages) {
                Ok(now) => looks = (std::mem::replace(&mut looks.1, now.clone()), now),
                Err(error) => failure = Some(chain(error.as_ref())),
            }
        }
        let is_resized = std::mem::replace(&mut size, screen.size()) != size;
        if !is_due && pressed.is_empty() && !is_resized {
            return None;
        }
        let text = match &failure {
            Some(reason) => format!("{reason}\n(trying again, Ctrl-C ends)\n"),
            None => {
                let (pages, style) = (options.pages, Style::of_stdout());
                let (size, takes_keys) = (Some(size), keys.is_some());
                frame::text(&looks.0, &looks.1, &View { size, pages, sort, takes_keys, style })
            }
        };
        screen.show(&text).err().map(Err)
    })?;
    drop(screen);
    drop(keys);
    ended.unwrap_or(Ok(()))?;
    Ok(())
}

/// Applies a key to the order of the racks.
const fn change(sort: &mut Sort, key: Key) {
    match key {
        Key::Left => sort.column = sort.column.saturating_sub(1),
        Key::Right if sort.column + 1 < frame::RACKS.len() => sort.column += 1,
        Key::Up => sort.is_descending = false,
        Key::Down => sort.is_descending = true,
        Key::Right | Key::Quit => {}
    }
}

/// The terminal's alternate screen; dropping it switches back.
pub(super) struct Screen(console::Term);

impl Screen {
    pub(super) fn open() -> std::io::Result<Self> {
        let mut term = console::Term::stdout();
        term.write_all(b"\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J")?;
        Ok(Self(term))
    }

    /// Returns columns and lines; 80 x 24 if the terminal does not know its size.
    fn size(&self) -> (usize, usize) {
        match self.0.size() {
            (0, _) | (_, 0) => (80, 24),
            (lines, columns) => (columns.into(), lines.into()),
        }
    }

    /// Redraws line by line, without clearing first, to avoid flicker.
    pub(super) fn show(&mut self, text: &str) -> std::io::Result<()> {
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
