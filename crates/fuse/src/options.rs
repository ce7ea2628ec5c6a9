use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use rackpool_client::RackId;
use rackpool_config::{ConfigFile, listen_address};

/// Mounts a file system that lives in a rackpool, until SIGINT, SIGTERM or an unmount.
#[derive(Clone, Debug, Parser)]
#[command(name = "rackpool-fuse", version)]
pub struct Options {
    /// The file.
    #[command(flatten)]
    pub config: ConfigFile,
    /// The folder to mount at; a mount whose process was killed is detached from it first.
    pub mount_point: PathBuf,
    /// The rack of this computer: 0 to 255.
    #[arg(long, default_value = "0", value_parser = parse_rack)]
    pub rack: RackId,
    /// Folder of the pool.
    #[arg(long, default_value = "/dev/shm/rackpool")]
    pub dir: PathBuf,
    /// Name of the file system, which all mounts of it share; it is made at the first mount.
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub volume: String,
    /// Threads that serve requests.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub threads: u16,
    /// How far the kernel reads ahead of programs that read in order, in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub read_ahead: u32,
    /// Let other users in, as their permissions are: always so when root mounts. For others
    /// /etc/fuse.conf has to say user_allow_other.
    #[arg(long)]
    pub allow_other: bool,
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics; a loopback address.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub metrics: Option<SocketAddr>,
    /// Stop when standard input ends: for programs that start mounts and may be killed.
    #[arg(long)]
    pub stop_with_stdin: bool,
    /// Detach the mount when standard input ends: the process that this one starts for itself.
    #[arg(long, hide = true)]
    pub watch: bool,
}

fn parse_rack(text: &str) -> Result<RackId, String> {
    match text.parse() {
        Ok(rack @ 0..=255) => Ok(RackId(rack)),
        _ => Err("a rack is a number from 0 to 255".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn a_full_line_is_understood() {
        let line = "rackpool-fuse /mnt --rack 1 --dir /dev/shm/p --volume v --threads 2";
        let options = Options::try_parse_from(line.split(' ')).unwrap();
        assert_eq!((options.rack, options.volume.as_str()), (RackId(1), "v"));
        assert!(Options::try_parse_from(["rackpool-fuse", "/mnt", "--rack", "256"]).is_err());
        assert!(Options::try_parse_from(["rackpool-fuse"]).is_err());
    }
}
