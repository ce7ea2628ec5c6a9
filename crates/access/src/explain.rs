use std::io;

use rustls::{AlertDescription as Alert, CertificateError as Certificate, Error};

/// Returns what the end of a TLS connection means and what to do about it. The text continues a
/// line after a colon.
#[must_use]
pub fn explain(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(tls) => of_tls(tls),
        None if is_end(error.kind()) => {
            "the other side ended the connection: it is being stopped or started again, or one of the two was started without --credentials".into()
        }
        None => error.to_string(),
    }
}

/// Returns true if the peer closed the connection. A peer that is stopped causes this, and so does
/// one that expects no TLS.
const fn is_end(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ends_is_no_mistake_of_credentials_alone() {
        for kind in [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset] {
            let text = explain(&io::Error::from(kind));
            assert!(text.contains("stopped or started again"), "{text}");
        }
        let text = explain(&io::Error::from(io::ErrorKind::TimedOut));
        assert_eq!(text, "timed out");
    }
}
