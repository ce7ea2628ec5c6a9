use std::io;

use rustls::{AlertDescription as Alert, CertificateError as Certificate, Error};

/// What the end of a TLS connection means, and what to do about it. The text goes on after a colon.
#[must_use]
pub fn explain(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(tls) => of_tls(tls),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the other side broke the TLS handshake off; was it started with --credentials?".into()
        }
        None => error.to_string(),
    }
}

fn of_tls(error: &Error) -> String {
    const RENEW: &str = "renew it with `rackpool credentials add --renew` and start it again";
    const ONE_FOLDER: &str = "all credentials of a pool come from one `rackpool credentials init`";
    match error {
        Error::InvalidCertificate(cause) => match cause {
            Certificate::Expired | Certificate::ExpiredContext { .. } => {
                format!("the other side's certificate has expired: {RENEW}")
            }
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
                "the other side's certificate is not valid yet: compare the clocks".into()
            }
            Certificate::UnknownIssuer | Certificate::BadSignature => {
                format!("another authority signed the other side's certificate: {ONE_FOLDER}")
            }
            Certificate::NotValidForName
            | Certificate::NotValidForNameContext { .. }
            | Certificate::InvalidPurpose
            | Certificate::InvalidPurposeContext { .. } => {
                "the other side has the certificate of another party: look at its --credentials"
                    .into()
            }
            other => format!("the other side's certificate is refused: {other:?}"),
        },
        Error::NoCertificatesPresented => "the other side has no credentials".into(),
        Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            format!(
                "the other side refuses these credentials, another authority signed them: {ONE_FOLDER}"
            )
        }
        Error::AlertReceived(Alert::CertificateExpired) => {
            format!(
                "the other side says that this certificate has expired: {RENEW}, or set the clocks"
            )
        }
        Error::AlertReceived(Alert::UnsupportedCertificate) => {
            "the other side refuses these credentials, they are another party's".into()
        }
        Error::AlertReceived(alert) => format!("the other side refuses the connection: {alert:?}"),
        Error::InvalidMessage(_) => {
            "the other side does not speak TLS: start it with --credentials as well".into()
        }
        other => other.to_string(),
    }
}
