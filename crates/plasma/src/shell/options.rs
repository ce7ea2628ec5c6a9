use std::path::PathBuf;

use anyhow::bail;
use clap::{ArgAction, Parser};
use rackpool_client::RackId;
use rackpool_config::ConfigFile;
use rackpool_output::UsageError;

/// Serves objects of a pool to clients of Apache Arrow's Plasma store, such as pyarrow up to
/// version 11. Without --dir it starts a private pool, which ends with the service.
#[derive(Clone, Debug, Parser)]
#[command(name = "rackpool-plasma", version, disable_help_flag = true)]
pub struct PlasmaOptions {
    /// The configuration file.
    #[command(flatten)]
    pub config: ConfigFile,
    /// Path of the Unix socket to listen on.
    #[arg(short = 's', long = "socket", value_name = "PATH")]
    pub socket: PathBuf,
    /// Capacity in bytes: data and metadata of the objects made through this service.
    #[arg(short = 'm', long = "memory", value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub memory: u64,
    /// Folder of the pool [default: a private pool].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Rack of this host: 0 to 255.
    #[arg(long, default_value = "0", value_parser = parse_rack)]
    pub rack: RackId,
    /// Name of the object store. It is created if it does not exist. Services of all racks with the
    /// same name share its objects, and so do programs that open the store with the library.
    #[arg(long, value_name = "NAME", default_value = "plasma")]
    pub store: String,
    /// Store that takes evicted objects, from which a get brings them back: hashtable://NAME, where
    /// NAME is another object store of the pool.
    #[arg(short = 'e', long = "external", value_name = "ENDPOINT")]
    pub external: Option<String>,
    /// Folder for the files of a private pool, on a file system that is memory.
    #[arg(short = 'd', long = "directory", value_name = "DIR", conflicts_with = "dir")]
    pub directory: Option<PathBuf>,
    /// Put a private pool on huge pages of 2 MiB.
    #[arg(short = 'h', long, conflicts_with = "dir")]
    pub hugepages: bool,
    /// Stop when standard input closes, so that the service ends with the program that started it.
    #[arg(long)]
    pub stop_with_stdin: bool,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
}

/// How an endpoint for evicted objects begins.
const HASH_TABLE: &str = "hashtable://";

impl PlasmaOptions {
    /// The name of the store that takes evicted objects.
    ///
    /// # Errors
    /// If the endpoint names none.
    pub(super) fn external_store(&self) -> anyhow::Result<Option<&str>> {
        let Some(endpoint) = &self.external else { return Ok(None) };
        match endpoint.strip_prefix(HASH_TABLE) {
            Some(name) if !name.is_empty() && name != self.store => Ok(Some(name)),
            _ => bail!(UsageError::new(format!(
                "-e {endpoint} names no store for evicted objects: give {HASH_TABLE}NAME with a name \
                 other than that of --store"
            ))),
        }
    }
}

fn parse_rack(text: &str) -> Result<RackId, String> {
    text.parse().map(RackId).map_err(|_| "a rack is a number from 0 to 255".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<PlasmaOptions, clap::Error> {
        PlasmaOptions::try_parse_from(words.split(' '))
    }

    #[test]
    fn the_command_line_is_that_of_plasma_s_store() {
        let options = parse("p -s /tmp/s -m 1000 -d /dev/shm -h -e hashtable://test").unwrap();
        assert_eq!(options.memory, 1000);
        assert!(options.hugepages && options.dir.is_none());
        assert_eq!(options.external_store().unwrap(), Some("test"));
        assert!(parse("p -s /tmp/s -m 1G").is_err(), "bytes, as Plasma's store takes them");
        assert!(parse("p -s /tmp/s").is_err() && parse("p -m 1000").is_err());
        assert!(parse("p -s /tmp/s -m 1000 --dir /p -h").is_err());
    }

    #[test]
    fn evicted_objects_go_to_another_store() {
        for endpoint in ["s3://bucket", "hashtable://", "hashtable://plasma"] {
            let options = parse(&format!("p -s /tmp/s -m 1 -e {endpoint}")).unwrap();
            assert!(options.external_store().is_err(), "{endpoint}");
        }
        assert_eq!(parse("p -s /tmp/s -m 1").unwrap().external_store().unwrap(), None);
    }
}
