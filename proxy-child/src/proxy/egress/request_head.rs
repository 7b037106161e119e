//! Head of a request to the proxy: parsed strictly, and written again for the host that it goes to. Pure.
//!
//! One request per connection. Whatever two readers could understand differently is refused.

use std::fmt::Write as _;

use ipc_protocol::{NetworkRule, normal_host};

/// Longest head.
pub(super) const MAX_HEAD: usize = 64 * 1024;

/// Place that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    /// As [`normal_host`] writes it.
    pub(super) host: String,
    pub(super) port: u16,
}

/// Length of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLength {
    Known(u64),
    /// Until the client or the server ends it.
    Chunked,
}

/// Head of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) method: String,
    /// Target as the client wrote it.
    pub(super) target: String,
    /// Names as the client wrote them.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: BodyLength,
    /// Bytes of the head, with the empty line.
    pub(super) length: usize,
}

/// Reads a head. `Ok(None)`: more bytes are needed.
///
/// # Errors
/// Reason why it is refused.
pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<RequestHead>, &'static str> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() >= MAX_HEAD { Err("its head is too long") } else { Ok(None) };
    };
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| "its head is not UTF-8")?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("its first line is none of HTTP/1");
    };
    let is_token = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&b))
    };
    if !is_token(method) || target.is_empty() || !target.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("its first line is none of HTTP/1");
    }
    let mut headers = Vec::new();
    let (mut length, mut is_chunked) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(':').filter(|(name, _)| is_token(name)).ok_or("it has a broken header")?;
        let value = value.trim_matches([' ', '\t']);
        if value.bytes().any(|b| b < b' ' && b != b'\t' || b == 0x7f) {
            return Err("it has a broken header");
        }
        if name.eq_ignore_ascii_case("content-length") {
            let number = value.parse::<u64>().ok().filter(|_| value.bytes().all(|b| b.is_ascii_digit()));
            if length.replace(number.ok_or("its length is no number")?).is_some() {
                return Err("it has two lengths");
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if is_chunked || !value.eq_ignore_ascii_case("chunked") {
                return Err("its transfer encoding is not just `chunked`");
            }
            is_chunked = true;
        }
        headers.push((name.to_owned(), value.to_owned()));
    }
    let body = match (length, is_chunked) {
        (Some(_), true) => return Err("it has two lengths"),
        (_, true) => BodyLength::Chunked,
        (length, false) => BodyLength::Known(length.unwrap_or(0)),
    };
    Ok(Some(RequestHead { method: method.to_owned(), target: target.to_owned(), headers, body, length: end + 4 }))
}

impl RequestHead {
    /// The authority and the path of a request to a proxy: `http://HOST[:PORT]/PATH`.
    pub(super) fn absolute(&self) -> Option<(Authority, String)> {
        let scheme = self.target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"))?;
        let rest = &self.target[scheme.len()..];
        let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Some((parse_authority(authority, Some(80))?, path))
    }

    /// Values of a header.
    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Returns whether the `Host` header is this host, once.
    pub(super) fn is_for(&self, host: &str) -> bool {
        let mut hosts = self.values("host");
        let first = hosts.next().and_then(|value| parse_authority(value, Some(80)));
        first.is_some_and(|first| first.host == host) && hosts.next().is_none()
    }

    /// Writes the head for a server: as the only request of its connection.
    pub(super) fn write(&self, authority: &str, path: &str) -> String {
        let named: Vec<String> = self
            .values("connection")
            .flat_map(|value| value.split(','))
            .map(|name| name.trim().to_ascii_lowercase())
            .collect();
        let mut text = format!("{} {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n", self.method);
        for (name, value) in &self.headers {
            let lower = name.to_ascii_lowercase();
            let is_hop = ["host", "connection", "keep-alive", "te", "trailer", "upgrade"].contains(&lower.as_str());
            if !is_hop && !lower.starts_with("proxy-") && !named.contains(&lower) {
                let _ = write!(text, "{name}: {value}\r\n");
            }
        }
        text.push_str("\r\n");
        text
    }
}

/// Reads `HOST[:PORT]`. `None` for what names no host, or has a login.
pub(super) fn parse_authority(text: &str, default_port: Option<u16>) -> Option<Authority> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if host.ends_with(']') || !host.contains(':') => (host, port.parse().ok()?),
        _ => (text, default_port?),
    };
    let host = normal_host(host);
    // A rule for it can be written exactly where it names a host.
    let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    shown.parse::<NetworkRule>().ok().filter(|rule| !rule.is_wildcard())?;
    Some(Authority { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> RequestHead {
        parse_head(text.as_bytes()).expect("understood").expect("whole")
    }

    #[test]
    fn a_request_to_a_proxy_becomes_one_to_its_host() {
        let head = head(
            "POST http://API.example.com:8080/a?b#c HTTP/1.1\r\nHost: evil.example\r\nProxy-Authorization: x\r\nX-Hop: 1\r\n\
             Connection: keep-alive, X-Hop\r\nContent-Length: 3\r\nAccept: */*\r\n\r\nabc",
        );
        let (authority, path) = head.absolute().expect("absolute");
        assert_eq!(authority, Authority { host: "api.example.com".into(), port: 8080 });
        assert_eq!((path.as_str(), head.body), ("/a?b", BodyLength::Known(3)));
        assert_eq!(
            head.write("api.example.com:8080", &path),
            "POST /a?b HTTP/1.1\r\nHost: api.example.com:8080\r\nConnection: close\r\nContent-Length: 3\r\nAccept: */*\r\n\r\n"
        );
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        for text in [
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
            "GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nA: b\nHost: c\r\n\r\n",
            "GET  / HTTP/1.1\r\n\r\n",
            "GET / HTTP/2\r\n\r\n",
            "\r\n\r\n",
        ] {
            assert!(parse_head(text.as_bytes()).is_err(), "{text:?}");
        }
        assert_eq!(parse_head(b"GET / HTTP/1.1\r\nHost: a"), Ok(None));
        assert!(parse_head(&vec![b'a'; MAX_HEAD]).is_err());
    }

    #[test]
    fn a_host_is_named_once() {
        assert!(head("GET / HTTP/1.1\r\nHost: A.example:80\r\n\r\n").is_for("a.example"));
        assert!(!head("GET / HTTP/1.1\r\nHost: b.example\r\n\r\n").is_for("a.example"));
        assert!(!head("GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n").is_for("a.example"));
        assert!(!head("GET / HTTP/1.1\r\n\r\n").is_for("a.example"));
    }

    #[test]
    fn an_authority_is_a_host_and_a_port() {
        for (text, host, port) in [("a.b:443", "a.b", 443), ("[::1]:80", "::1", 80), ("1.2.3.4:1", "1.2.3.4", 1)] {
            assert_eq!(parse_authority(text, None), Some(Authority { host: host.into(), port }));
        }
        for text in ["a.b", "user@a.b:80", "a b:80", "a.b:99999", ":80", "a.b:80:80", "*.a.b:80"] {
            assert_eq!(parse_authority(text, None), None, "{text}");
        }
    }
}
