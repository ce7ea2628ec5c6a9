use std::path::PathBuf;

use clap::Parser;
use rackpool_model::RackId;

/// Serves one rack of a rackpool.
#[derive(Clone, Debug, Parser)]
#[command(name = "rackpool-daemon", version)]
pub struct Options {
    /// The rack to serve: 0 to 255.
    #[arg(long, value_parser = parse_rack)]
    pub rack: RackId,
    /// Folder of the pool, on a file system that is memory; the rack's files go to rack-N in it.
    #[arg(long, default_value = "/dev/shm/rackpool")]
    pub dir: PathBuf,
    /// Address of the metadata server.
    #[arg(long, default_value = "127.0.0.1:7400")]
    pub metadata: String,
    /// CXL memory of the rack: bytes, or with a suffix like 512M or 8G.
    #[arg(long, default_value = "1G", value_parser = parse_bytes)]
    pub memory: u64,
    /// Page size: a power of two from 4K to 1G, the same in the whole pool.
    #[arg(long, default_value = "2M", value_parser = parse_bytes)]
    pub page_size: u64,
    /// One-way latency of the emulated fabric in microseconds.
    #[arg(long, default_value_t = 2.0, value_parser = parse_latency)]
    pub latency_us: f64,
    /// Bandwidth of each direction of the emulated fabric in Gbit/s.
    #[arg(long, default_value_t = 100.0)]
    pub bandwidth_gbps: f64,
    /// Stop when standard input ends: for programs that start daemons and may be killed.
    #[arg(long)]
    pub stop_with_stdin: bool,
}

fn parse_rack(text: &str) -> Result<RackId, String> {
    text.parse().map(RackId).map_err(|_| "a rack is a number from 0 to 255".into())
}

fn parse_latency(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(latency) if (0.0..=1e7).contains(&latency) => Ok(latency),
        _ => Err("microseconds from 0 to 10000000".into()),
    }
}

/// A number of bytes, with an optional suffix K, M, G or T (powers of 1024).
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let help = || format!("'{text}' is no size: write bytes, or a number with K, M, G or T");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        "T" | "t" | "TiB" => 40,
        _ => return Err(help()),
    };
    let number: u64 = digits.parse().map_err(|_| help())?;
    number.checked_mul(1 << shift).ok_or_else(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("2M"), Ok(2 << 20));
        assert_eq!(parse_bytes("1GiB"), Ok(1 << 30));
        for bad in ["", "M", "1.5G", "12X", "-1", "99999999999999999999T"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
