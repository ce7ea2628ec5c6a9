//! `rackpool credentials`: certificates for the parties of a pool that spans hosts.

use std::path::PathBuf;

use rackpool_access::{Authority, Party};
use rackpool_model::RackId;
use rackpool_output::print;

/// What is made.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// Create an authority, and credentials for the metadata server, an operator and the racks.
    Init {
        /// Folder for the authority and all credentials. Keep it with the operator: authority.key
        /// can issue credentials for every party.
        folder: PathBuf,
        /// Number of racks. They are numbered from 0.
        #[arg(long, default_value_t = 2)]
        racks: u16,
        #[command(flatten)]
        validity: Validity,
    },
    /// Create credentials for further parties.
    Add {
        /// Folder that `init` created.
        folder: PathBuf,
        /// Parties: `rack-N` like rack-7, `operator` or `metadata`.
        #[arg(required = true)]
        parties: Vec<Party>,
        /// Replace existing credentials. Use it before a certificate expires.
        #[arg(long)]
        renew: bool,
        #[command(flatten)]
        validity: Validity,
    },
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Validity {
    /// Validity of the certificates in days: 1 to 3650.
    #[arg(long, default_value_t = 730, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

/// The instructions printed at the end.
const NEXT: &str = "
copy each folder to its host, readable only by its user, and pass it with --credentials:
  rackpool-metaserver --credentials metadata ...
  rackpool-daemon --rack 0 --credentials rack-0 ...
  rackpool status --credentials operator ...
";

/// Makes the credentials and prints what to do with them.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (authority, parties, days, renew) = match &options.what {
        What::Init { folder, racks, validity } => {
            let racks = (0..*racks).map(|rack| Party::Rack(RackId(rack)));
            let parties = [Party::MetadataServer, Party::Operator].into_iter().chain(racks);
            (Authority::create(folder)?, parties.collect(), validity.days, false)
        }
        What::Add { folder, parties, renew, validity } => {
            (Authority::open(folder)?, parties.clone(), validity.days, *renew)
        }
    };
    // All files are written before anything is printed: the reader of the output may stop reading.
    let mut made = String::new();
    for party in parties {
        let folder = authority.issue(party, days, renew)?;
        made += &format!("{party:<12} {}\n", folder.display());
    }
    print(format_args!("{made}{NEXT}"))?;
    Ok(())
}
