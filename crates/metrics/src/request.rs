//! What a scraper asks.

/// The longest head of a request, in bytes.
pub(crate) const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 32;

/// What came so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The head has not ended.
    Unfinished,
    /// The figures; `true`: with their text, not only its headers.
    Figures(bool),
    /// Something else: the status line's code and words.
    Wrong(&'static str),
}

/// Reads the head of a request.
pub(crate) fn read(bytes: &[u8]) -> Asked {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Asked::Unfinished,
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Asked::Wrong("431 Request Header Fields Too Large");
        }
        Err(_) => return Asked::Wrong("400 Bad Request"),
    }
    let path = request.path.unwrap_or_default();
    match (request.method, path.split('?').next()) {
        (Some("GET"), Some("/metrics")) => Asked::Figures(true),
        (Some("HEAD"), Some("/metrics")) => Asked::Figures(false),
        (Some("GET" | "HEAD"), _) => Asked::Wrong("404 Not Found"),
        _ => Asked::Wrong("405 Method Not Allowed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_figures_are_served() {
        let whole = |start: &str| read(format!("{start} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!(whole("GET /metrics"), Asked::Figures(true));
        assert_eq!(whole("GET /metrics?name=x"), Asked::Figures(true));
        assert_eq!(whole("HEAD /metrics"), Asked::Figures(false));
        assert_eq!(whole("GET /"), Asked::Wrong("404 Not Found"));
        assert_eq!(whole("POST /metrics"), Asked::Wrong("405 Method Not Allowed"));
    }

    #[test]
    fn garbage_is_refused_and_a_beginning_is_waited_for() {
        assert_eq!(read(b""), Asked::Unfinished);
        assert_eq!(read(b"GET /metrics HTTP/1.1\r\nHost"), Asked::Unfinished);
        assert_eq!(read(b"\x16\x03\x01\0\0"), Asked::Wrong("400 Bad Request"));
        let mut long = b"GET /metrics HTTP/1.1\r\nA: ".to_vec();
        long.resize(MAX_HEAD, b'a');
        assert_eq!(read(&long), Asked::Wrong("431 Request Header Fields Too Large"));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(read(many.as_bytes()), Asked::Wrong("431 Request Header Fields Too Large"));
    }
}
