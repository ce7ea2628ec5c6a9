use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use rackpool_client::RackId;
use rackpool_config::{ConfigFile, listen_address};

/// Mounts a volume of a pool until SIGINT, SIGTERM or an unmount.
#[derive(Clone, Debug, Parser)]
#[command(name = "rackpool-fuse", version)]
pub struct MountOptions {
    /// The configuration file.
    #[command(flatten)]
    pub config: ConfigFile,
    /// Folder to mount at. A mount left there by a killed process is detached first.
    pub mount_point: PathBuf,
    /// Rack of this host: 0 to 255.
    #[arg(long, default_value = "0", value_parser = parse_rack)]
    pub rack: RackId,
    /// Folder of the pool.
    #[arg(long, default_value = "/dev/shm/rackpool")]
    pub dir: PathBuf,
    /// Name of the volume. All mounts with this name share its files. The first mount creates it.
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub volume: String,
    /// Number of threads that serve requests: 1 to 32.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub threads: u16,
    /// The kernel's read-ahead for sequential reads, in KiB: 0 to 65536.
    #[arg(long, value_name = "KIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub read_ahead: u32,
    /// Give other users access, subject to the permissions of the files. This is always on if root
    /// mounts; other users need user_allow_other in /etc/fuse.conf.
    #[arg(long)]
    pub allow_other: bool,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics; must be a loopback address.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub metrics: Option<SocketAddr>,
    /// Stop when standard input closes, so that the mount ends with the program that started it.
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
        MountOptions::command().debug_assert();
    }

    #[test]
    fn a_full_line_is_understood() {
        let line = "rackpool-fuse /mnt --rack 1 --dir /dev/shm/p --volume v --threads 2";
        let options = MountOptions::try_parse_from(line.split(' ')).unwrap();
        assert_eq!((options.rack, options.volume.as_str()), (RackId(1), "v"));
        assert!(MountOptions::try_parse_from(["rackpool-fuse", "/mnt", "--rack", "256"]).is_err());
        assert!(MountOptions::try_parse_from(["rackpool-fuse"]).is_err());
    }
}
