//! Options of a program from a configuration file and from the command line.
//!
//! The file is TOML with a section for each program; its keys are the long names of the flags.
//! Entries of the file are appended to the command line as flags, unless the command line gives the
//! same flag. So flags take precedence, and both sources have the same names, parsers and errors.
#![forbid(unsafe_code)]

mod address;
mod entries;
mod error;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Parser};

pub use address::listen_address;
use entries::{Entry, File};
pub use error::ConfigError;

/// The sections that a file may have, one for each program.
const SECTIONS: [&str; 6] = ["metaserver", "daemon", "rackpool", "kv", "fuse", "plasma"];

/// The option that names the file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfigFile {
    /// TOML file with options. Options of the command line override the file
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

/// Returns the options of this program. Ends the process on an error, as `clap` does.
#[must_use]
pub fn parse<O: Parser>(section: &str) -> O {
    match try_parse_from(section, std::env::args_os()) {
        Ok(options) => options,
        Err(ConfigError::CommandLine(error)) => error.exit(),
        Err(error) => {
            rackpool_output::note(format_args!("error: {error}"));
            std::process::exit(2);
        }
    }
}

/// Returns the options that `words` and the configuration file named in them give.
///
/// # Errors
/// Names the file, the line and the key, or returns `clap`'s error for the command line.
pub fn try_parse_from<O: Parser>(
    section: &str,
    words: impl IntoIterator<Item = OsString>,
) -> Result<O, ConfigError> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let given = match O::command().try_get_matches_from(&words) {
        Ok(matches) => matches,
        // The file may contain the missing argument.
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            O::command().ignore_errors(true).try_get_matches_from(&words)?
        }
        Err(error) => return Err(error.into()),
    };
    let mut command = O::command();
    command.build();
    let (command, matches) = innermost(&command, &given);
    let Some(path) = matches.try_get_one::<PathBuf>("config").ok().flatten() else {
        return Ok(O::try_parse_from(words)?);
    };
    let file = File::read(path)?;
    let entries = file.section(section, &SECTIONS)?;
    let known = O::command();
    let mut used = Vec::new();
    for entry in entries {
        if !knows(&known, &entry.key) {
            return Err(entry.refused("there is no such option"));
        }
        if let Some(argument) = option(command, &entry.key)
            && matches.value_source(argument.get_id().as_str()) != Some(ValueSource::CommandLine)
        {
            used.push((entry.words(argument)?, entry));
        }
    }
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.splice(end..end, used.iter().flat_map(|(words, _)| words.iter().map(OsString::from)));
    O::try_parse_from(words).map_err(|error| match culprit(&error, &used) {
        Some(entry) => entry.refused(first_line(&error)),
        None => error.into(),
    })
}

/// Returns the called subcommand and its arguments.
fn innermost<'a>(command: &'a Command, matches: &'a ArgMatches) -> (&'a Command, &'a ArgMatches) {
    match matches.subcommand() {
        Some((name, inner)) => match command.find_subcommand(name) {
            Some(subcommand) => innermost(subcommand, inner),
            None => (command, matches),
        },
        None => (command, matches),
    }
}

fn option<'a>(command: &'a Command, key: &str) -> Option<&'a clap::Arg> {
    // A configuration file must not name another one; `help` and `version` would end the program.
    let barred = ["config", "help", "version"].contains(&key);
    command.get_arguments().find(|argument| argument.get_long() == Some(key) && !barred)
}

/// Returns true if the program or one of its subcommands has this option.
fn knows(command: &Command, key: &str) -> bool {
    option(command, key).is_some() || command.get_subcommands().any(|inner| knows(inner, key))
}

/// Returns the entry of the file that caused an error.
fn culprit<'a>(error: &clap::Error, used: &'a [(Vec<String>, Entry)]) -> Option<&'a Entry> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = argument.split([' ', '=']).next()?.strip_prefix("--")?;
    used.iter().map(|(_, entry)| entry).find(|entry| entry.key == name)
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
