use std::fmt;
use std::str::FromStr;

use rackpool_model::RackId;
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The domain of all names in certificates. No resolver is asked for these names.
const DOMAIN: &str = ".rackpool";

/// The owner of a certificate. `FromStr` and `Display` use the name of the party's folder:
/// `metadata`, `operator`, `rack-7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The metadata server.
    MetadataServer,
    /// The daemon of a rack.
    Rack(RackId),
    /// A person, or a monitoring program.
    Operator,
}

impl Party {
    /// The DNS name in the party's certificate.
    #[must_use]
    pub fn certificate_name(self) -> String {
        format!("{self}{DOMAIN}")
    }

    /// Returns true if the party accepts connections. The other parties connect to it.
    #[must_use]
    pub const fn is_server(self) -> bool {
        matches!(self, Self::MetadataServer)
    }

    /// Returns the party that a certificate names; `None` if it names no party, or several.
    #[must_use]
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = EndEntityCert::try_from(certificate).ok()?;
        let mut names = parsed.valid_dns_names();
        let party = names.next()?.strip_suffix(DOMAIN)?.parse().ok()?;
        names.next().is_none().then_some(party)
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MetadataServer => f.pad("metadata"),
            Self::Rack(rack) => f.pad(&format!("rack-{}", rack.0)),
            Self::Operator => f.pad("operator"),
        }
    }
}

impl FromStr for Party {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let party = match text {
            "metadata" => Some(Self::MetadataServer),
            "operator" => Some(Self::Operator),
            _ => {
                let rack = text.strip_prefix("rack-").and_then(|number| number.parse().ok());
                rack.map(RackId).map(Self::Rack)
            }
        };
        // Each party has one spelling: `rack-07` is refused.
        party
            .filter(|party| party.to_string() == text)
            .ok_or_else(|| format!("'{text}' is neither metadata, operator nor like rack-7"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_party_has_one_spelling() {
        for text in ["metadata", "operator", "rack-0", "rack-255"] {
            assert_eq!(text.parse::<Party>().unwrap().to_string(), text);
        }
        for text in ["", "rack-", "rack-07", "rack-+7", "rack-70000", "Rack-7", "metadata.rackpool"]
        {
            assert!(text.parse::<Party>().is_err(), "{text}");
        }
    }

    #[test]
    fn garbage_names_nobody() {
        assert_eq!(Party::of_certificate(&CertificateDer::from(vec![0x30, 0x82, 0xff])), None);
        assert_eq!(Party::of_certificate(&CertificateDer::from(Vec::new())), None);
    }
}
