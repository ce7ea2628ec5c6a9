//! The HTTP request of a scraper.

use crate::Format;

/// The longest request head, in bytes.
pub(crate) const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 32;

/// The result of parsing the bytes received so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The head is incomplete.
    Unfinished,
    /// A request that is served. `with_text` is set for GET (headers and body), not for HEAD.
    Served { what: Served, with_text: bool },
    /// A request that is refused, with the status line's code and words.
    Wrong(&'static str),
}

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// The metrics.
    Metrics(Format),
    /// Whether the process does its work.
    Health,
}

/// Parses the head of a request.
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
    let with_text = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return Asked::Wrong("405 Method Not Allowed"),
    };
    let path = request.path.unwrap_or_default();
    let what = match path.split('?').next() {
        Some("/metrics") => Served::Metrics(accepted(request.headers)),
        Some("/healthz") => Served::Health,
        _ => return Asked::Wrong("404 Not Found"),
    };
    Asked::Served { what, with_text }
}

/// Returns the format that the `Accept` headers prefer. OpenMetrics is chosen only if it is named
/// with at least the weight of plain text.
fn accepted(headers: &[httparse::Header<'_>]) -> Format {
    let of_accept = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("accept");
    let values = headers.iter().filter(of_accept);
    let values = values.filter_map(|header| std::str::from_utf8(header.value).ok());
    let (mut plain, mut open) = (0.0_f32, 0.0_f32);
    for range in values.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut weight, mut is_known) = (1.0, true);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => weight = value.trim().parse().unwrap_or(0.0),
                "version" => is_known = ["1.0.0", "0.0.4"].contains(&value.trim_matches('"')),
                _ => {}
            }
        }
        match media.as_str() {
            "application/openmetrics-text" if is_known => open = open.max(weight),
            "text/plain" if is_known => plain = plain.max(weight),
            _ => {}
        }
    }
    if open > 0.0 && open >= plain { Format::OpenMetrics } else { Format::Plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: Served = Served::Metrics(Format::Plain);

    #[test]
    fn only_metrics_and_health_are_served() {
        let whole = |start: &str| read(format!("{start} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        let served = |what, with_text| Asked::Served { what, with_text };
        assert_eq!(whole("GET /metrics"), served(METRICS, true));
        assert_eq!(whole("GET /metrics?name=x"), served(METRICS, true));
        assert_eq!(whole("HEAD /metrics"), served(METRICS, false));
        assert_eq!(whole("GET /healthz"), served(Served::Health, true));
        assert_eq!(whole("GET /"), Asked::Wrong("404 Not Found"));
        assert_eq!(whole("POST /metrics"), Asked::Wrong("405 Method Not Allowed"));
    }

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            ("*/*", Format::Plain),
            ("text/plain", Format::Plain),
            ("text/plain;version=0.0.4", Format::Plain),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("Application/OpenMetrics-Text; version=\"1.0.0\"", Format::OpenMetrics),
            ("application/openmetrics-text;version=9.9.9", Format::Plain),
            ("application/openmetrics-text;q=0", Format::Plain),
            ("application/openmetrics-text;q=0.2,text/plain;q=0.9", Format::Plain),
            (prometheus, Format::OpenMetrics),
            ("\u{e4};q=x,,;=", Format::Plain),
        ] {
            let head = format!("GET /metrics HTTP/1.1\r\naccept: {accept}\r\n\r\n");
            let what = Served::Metrics(format);
            assert_eq!(read(head.as_bytes()), Asked::Served { what, with_text: true }, "{accept}");
        }
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
