use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::credentials::{AUTHORITY, CERTIFICATE, KEY};
use crate::files::{self, PUBLIC, SECRET};
use crate::{CredentialsError, Party};

/// File name of the authority's private key. The key never leaves the authority's folder.
const AUTHORITY_KEY: &str = "authority.key";
/// Validity of an authority's certificate, in days.
const AUTHORITY_DAYS: u32 = 3650;
/// Certificates are dated back by this much, so that hosts with slow clocks accept them.
const CLOCK_SLACK: Duration = Duration::from_secs(3600);

/// The certificate authority that signs the certificates of a pool.
pub struct Authority {
    folder: PathBuf,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates an authority in a folder that has none.
    ///
    /// # Errors
    /// When the folder has an authority, or can't be written.
    pub fn create(folder: &Path) -> Result<Self, CredentialsError> {
        let (key_path, path) = (folder.join(AUTHORITY_KEY), folder.join(AUTHORITY));
        if path.exists() || key_path.exists() {
            let advice = "add parties with `rackpool credentials add`, or choose another folder";
            return Err(CredentialsError::Exists { path: key_path, advice });
        }
        let failed = |error: rcgen::Error| CredentialsError::damaged(&key_path, &error);
        let key = KeyPair::generate().map_err(failed)?;
        let params = authority_params(&key);
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        files::make_folder(folder)?;
        files::write(&key_path, &key.serialize_pem(), SECRET)?;
        files::write(&path, &certificate, PUBLIC)?;
        Ok(Self { folder: folder.to_owned(), certificate, issuer: Issuer::new(params, key) })
    }

    /// Opens the authority in a folder.
    ///
    /// # Errors
    /// When other users can replace files in the folder, it has no authority, the authority's files
    /// are damaged, or its key can be read by other users.
    pub fn open(folder: &Path) -> Result<Self, CredentialsError> {
        let folder = &files::require_trusted(folder)?;
        let (key_path, path) = (folder.join(AUTHORITY_KEY), folder.join(AUTHORITY));
        let text = String::from_utf8(files::read_secret(&key_path)?);
        let text = text.map_err(|error| CredentialsError::damaged(&key_path, &error))?;
        let key = KeyPair::from_pem(&text);
        let key = key.map_err(|error| CredentialsError::damaged(&key_path, &error))?;
        let certificate = String::from_utf8(files::read(&path)?);
        let certificate = certificate.map_err(|error| CredentialsError::damaged(&path, &error))?;
        let params = authority_params(&key);
        Ok(Self { folder: folder.to_owned(), certificate, issuer: Issuer::new(params, key) })
    }

    /// Creates a party's folder with a key and a certificate that is valid for `days` days, and
    /// returns the folder's path. An existing key and certificate are replaced only if `renew` is
    /// set.
    ///
    /// # Errors
    /// When the party has a key or certificate and `renew` is not set, or the folder can't be
    /// written.
    pub fn issue(&self, party: Party, days: u32, renew: bool) -> Result<PathBuf, CredentialsError> {
        self.issue_at(SystemTime::now(), party, days, renew)
    }

    /// As [`issue`](Self::issue), on a host whose clock shows `now`.
    ///
    /// # Errors
    /// As for [`issue`](Self::issue).
    pub fn issue_at(
        &self,
        now: SystemTime,
        party: Party,
        days: u32,
        renew: bool,
    ) -> Result<PathBuf, CredentialsError> {
        let folder = self.folder.join(party.to_string());
        let (key_path, path) = (folder.join(KEY), folder.join(CERTIFICATE));
        if !renew && (path.exists() || key_path.exists()) {
            let advice = "renew it with `rackpool credentials add --renew`";
            return Err(CredentialsError::Exists { path: folder, advice });
        }
        let failed = |error: rcgen::Error| CredentialsError::damaged(&key_path, &error);
        let key = KeyPair::generate().map_err(failed)?;
        let name = party.certificate_name();
        let mut params = CertificateParams::new(vec![name.clone()]).map_err(failed)?;
        params.distinguished_name = common_name(name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![if party.is_server() {
            ExtendedKeyUsagePurpose::ServerAuth
        } else {
            ExtendedKeyUsagePurpose::ClientAuth
        }];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, now, days);
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?.pem();
        files::make_folder(&folder)?;
        files::write(&folder.join(AUTHORITY), &self.certificate, PUBLIC)?;
        files::write(&key_path, &key.serialize_pem(), SECRET)?;
        files::write(&path, &certificate, PUBLIC)?;
        Ok(folder)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority in {}", self.folder.display())
    }
}

/// Returns the certificate parameters of an authority with this key. The name follows from the key:
/// two authorities have two names, and `open` signs without reading the name from the certificate.
fn authority_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = "rackpool authority ".to_owned();
    for byte in params.key_identifier(key).iter().take(8) {
        // Writing to a string does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    params.distinguished_name = common_name(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    set_validity(&mut params, SystemTime::now(), AUTHORITY_DAYS);
    params
}

fn common_name(name: String) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn set_validity(params: &mut CertificateParams, now: SystemTime, days: u32) {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCK_SLACK);
    params.not_after = epoch + now + Duration::from_secs(u64::from(days) * 86_400);
}
