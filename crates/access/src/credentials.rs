use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{Error, RootCertStore};
use webpki::{EndEntityCert, KeyUsage};

use crate::{CredentialsError, Party, files};

/// File name of the authority's certificate, in every party's folder.
pub(crate) const AUTHORITY: &str = "authority.crt";
/// File name of a party's certificate.
pub(crate) const CERTIFICATE: &str = "own.crt";
/// File name of a party's private key.
pub(crate) const KEY: &str = "own.key";

/// A party's certificate and key, and the authority it trusts.
#[derive(Clone)]
pub struct Credentials {
    folder: PathBuf,
    party: Party,
    own: Arc<CertifiedKey>,
    authority: Arc<RootCertStore>,
}

impl Credentials {
    /// Reads and checks all files of a party's folder.
    ///
    /// # Errors
    /// When other users can replace files there, a file is missing or damaged, other users can read
    /// the key, the key does not belong to the certificate, the certificate is not valid now, or
    /// another authority signed it.
    pub fn load(folder: &Path) -> Result<Self, CredentialsError> {
        Self::load_at(SystemTime::now(), folder)
    }

    /// As [`load`](Self::load), on a host whose clock shows `now`.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_at(now: SystemTime, folder: &Path) -> Result<Self, CredentialsError> {
        let folder = &files::require_trusted(folder)?;
        let (certificate_path, key_path) = (folder.join(CERTIFICATE), folder.join(KEY));
        let authority = read_authority(&folder.join(AUTHORITY))?;
        let certificate = read_certificate(&certificate_path)?;
        let key = PrivateKeyDer::from_pem_slice(&files::read_secret(&key_path)?)
            .map_err(|error| CredentialsError::damaged(&key_path, &error))?;
        let foreign = |cause: &str| CredentialsError::Foreign {
            path: certificate_path.clone(),
            cause: cause.to_owned(),
        };
        let party = Party::of_certificate(&certificate)
            .ok_or_else(|| foreign("it names no party of a pool"))?;
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        verify(&certificate, party, &authority, UnixTime::since_unix_epoch(now))
            .map_err(|error| verdict(&certificate_path, &error))?;
        let own = CertifiedKey::from_der(vec![certificate], key, &ring::default_provider());
        let own = own.map_err(|error| match error {
            Error::InconsistentKeys(_) => CredentialsError::Mixed { folder: folder.to_owned() },
            other => CredentialsError::damaged(&key_path, &other),
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            party,
            own: Arc::new(own),
            authority: Arc::new(authority),
        })
    }

    /// Loads the credentials of the party `wanted`.
    ///
    /// # Errors
    /// As for [`load`](Self::load), and when the folder has another party's credentials.
    pub fn load_of(folder: &Path, wanted: Party) -> Result<Self, CredentialsError> {
        let found = Self::load(folder)?;
        if found.party == wanted {
            return Ok(found);
        }
        Err(CredentialsError::Party { folder: found.folder, found: found.party, wanted })
    }

    /// Returns the party that the certificate names.
    #[must_use]
    pub const fn party(&self) -> Party {
        self.party
    }

    /// Returns true if the certificate will be invalid after `time` from now.
    #[must_use]
    pub fn expire_within(&self, time: Duration) -> bool {
        let then = UnixTime::now().as_secs().saturating_add(time.as_secs());
        let then = UnixTime::since_unix_epoch(Duration::from_secs(then));
        self.own.cert.first().is_none_or(|certificate| {
            verify(certificate, self.party, &self.authority, then).is_err()
        })
    }

    /// Returns when the certificate expires, in seconds since 1970.
    #[must_use]
    pub fn expiry(&self) -> Option<u64> {
        let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
        let certificate = self.own.cert.first()?;
        match verify(certificate, self.party, &self.authority, end_of_time) {
            Err(webpki::Error::CertExpired { not_after, .. }) => Some(not_after.as_secs()),
            _ => None,
        }
    }

    /// Returns the TLS configuration of a server. The server demands a certificate of every client.
    ///
    /// # Errors
    /// When the TLS library refuses the credentials.
    pub fn server(&self) -> Result<Arc<ServerConfig>, CredentialsError> {
        let failed = |cause: String| CredentialsError::Tls { folder: self.folder.clone(), cause };
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.authority), provider())
                .build()
                .map_err(|error| failed(error.to_string()))?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| failed(error.to_string()))?;
        let mut config = builder
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&self.own))));
        // Without session resumption every connection's certificate is verified anew.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// Returns the TLS configuration of a client. The client demands [`Self::server_name`].
    ///
    /// # Errors
    /// When the TLS library refuses the credentials.
    pub fn client(&self) -> Result<Arc<ClientConfig>, CredentialsError> {
        let failed = |error: Error| CredentialsError::Tls {
            folder: self.folder.clone(),
            cause: error.to_string(),
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?;
        let mut config = builder
            .with_root_certificates(Arc::clone(&self.authority))
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&self.own))));
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// The name that a client demands in the server's certificate, whatever address it connects to.
    ///
    /// # Errors
    /// Never with the names that this crate creates.
    pub fn server_name(&self) -> Result<ServerName<'static>, CredentialsError> {
        ServerName::try_from(Party::MetadataServer.certificate_name()).map_err(|error| {
            CredentialsError::Tls { folder: self.folder.clone(), cause: error.to_string() }
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials of {} in {}", self.party, self.folder.display())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

pub(crate) fn read_certificate(path: &Path) -> Result<CertificateDer<'static>, CredentialsError> {
    CertificateDer::from_pem_slice(&files::read(path)?)
        .map_err(|error| CredentialsError::damaged(path, &error))
}

fn read_authority(path: &Path) -> Result<RootCertStore, CredentialsError> {
    let mut store = RootCertStore::empty();
    store.add(read_certificate(path)?).map_err(|error| CredentialsError::damaged(path, &error))?;
    Ok(store)
}

fn verify(
    certificate: &CertificateDer<'_>,
    party: Party,
    authority: &RootCertStore,
    time: UnixTime,
) -> Result<(), webpki::Error> {
    let usage = if party.is_server() { KeyUsage::server_auth() } else { KeyUsage::client_auth() };
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    EndEntityCert::try_from(certificate)?
        .verify_for_usage(algorithms, &authority.roots, &[], time, usage, None, None)
        .map(drop)
}

fn verdict(path: &Path, error: &webpki::Error) -> CredentialsError {
    let path = path.to_owned();
    let days = |from: &UnixTime, to: &UnixTime| to.as_secs().abs_diff(from.as_secs()) / 86_400;
    match error {
        webpki::Error::CertExpired { time, not_after } => {
            let cause = format!("expired {} days ago", days(time, not_after));
            CredentialsError::Time { path, cause }
        }
        webpki::Error::CertNotValidYet { time, not_before } => {
            let cause = format!("is not valid before {} days from now", days(time, not_before));
            CredentialsError::Time { path, cause }
        }
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            CredentialsError::Authority { path }
        }
        other => CredentialsError::Foreign { path, cause: format!("{other:?}") },
    }
}
