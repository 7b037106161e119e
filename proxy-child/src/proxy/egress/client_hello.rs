//! The name that a TLS client asks for, in the first bytes that it sends. Pure.

/// Longest handshake message that is looked at.
const MAX_HELLO: usize = 32 * 1024;
const HANDSHAKE: u8 = 0x16;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// Result of a look at the first bytes of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HelloVerdict {
    /// More bytes are needed.
    Incomplete,
    /// The bytes are none of TLS, or none that can be understood.
    NotTls,
    /// The client names a host, or none; it hides another one where `is_encrypted`.
    Hello { name: Option<String>, is_encrypted: bool },
}

/// Looks at the bytes that a client has sent so far.
pub(super) fn parse_hello(bytes: &[u8]) -> HelloVerdict {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        match rest {
            [] => return HelloVerdict::Incomplete,
            [kind, ..] if *kind != HANDSHAKE => return HelloVerdict::NotTls,
            [_, 3, _, high, low, after @ ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                if length == 0 || message.len() + length > MAX_HELLO {
                    return HelloVerdict::NotTls;
                }
                let Some(fragment) = after.get(..length) else {
                    // What is there may tell already that it is none.
                    return HelloVerdict::Incomplete;
                };
                message.extend_from_slice(fragment);
                rest = &after[length..];
            }
            [_, version, ..] if *version != 3 => return HelloVerdict::NotTls,
            _ => return HelloVerdict::Incomplete,
        }
        if let [kind, a, b, c, body @ ..] = &message[..] {
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if *kind != CLIENT_HELLO || length > MAX_HELLO {
                return HelloVerdict::NotTls;
            }
            if let Some(body) = body.get(..length) {
                return parse_body(body).unwrap_or(HelloVerdict::NotTls);
            }
        }
    }
}

fn parse_body(body: &[u8]) -> Option<HelloVerdict> {
    let mut body = Reader(body);
    body.take(2 + 32)?;
    body.block8()?;
    body.block16()?;
    body.block8()?;
    let (mut name, mut is_encrypted) = (None, false);
    // A client without extensions names nobody.
    let mut extensions = Reader(if body.0.is_empty() { &[] } else { body.block16()? });
    while !extensions.0.is_empty() {
        let (kind, data) = (extensions.number16()?, extensions.block16()?);
        match kind {
            SERVER_NAME => {
                let mut names = Reader(Reader(data).block16()?);
                let (0, host) = (names.take(1)?[0], names.block16()?) else { return None };
                // One alone: of several nobody knows which the server takes.
                if !names.0.is_empty() || name.is_some() {
                    return None;
                }
                name = Some(std::str::from_utf8(host).ok().filter(|host| host.is_ascii())?.to_owned());
            }
            ENCRYPTED_CLIENT_HELLO => is_encrypted = true,
            _ => {}
        }
    }
    Some(HelloVerdict::Hello { name, is_encrypted })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn block8(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.take(1)?[0]);
        self.take(length)
    }

    fn block16(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.number16()?);
        self.take(length)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn block16(data: &[u8]) -> Vec<u8> {
        [&u16::try_from(data.len()).expect("short").to_be_bytes()[..], data].concat()
    }

    /// A client's first message with these extensions.
    fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let extensions: Vec<u8> =
            extensions.iter().flat_map(|(kind, data)| [&kind.to_be_bytes()[..], &block16(data)].concat()).collect();
        let body = [&[3, 3][..], &[7; 32], &[0], &block16(&[0x13, 1]), &[1, 0], &block16(&extensions)].concat();
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    fn server_names(names: &[&str]) -> (u16, Vec<u8>) {
        let list: Vec<u8> = names.iter().flat_map(|name| [&[0][..], &block16(name.as_bytes())].concat()).collect();
        (SERVER_NAME, block16(&list))
    }

    /// The message in records of at most `size` bytes.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|part| [&[HANDSHAKE, 3, 1][..], &block16(part)].concat()).collect()
    }

    /// First bytes of a client that asks for a host.
    pub(in crate::proxy::egress) fn client_hello(host: &str) -> Vec<u8> {
        records(&hello(&[server_names(&[host])]), 4096)
    }

    #[test]
    fn the_name_is_found_in_any_number_of_records() {
        let message = hello(&[(43, vec![2, 3, 4]), server_names(&["api.example.com"])]);
        let expected = HelloVerdict::Hello { name: Some("api.example.com".into()), is_encrypted: false };
        for size in [1, 5, 4096] {
            let bytes = records(&message, size);
            assert_eq!(parse_hello(&bytes), expected);
            for end in 0..bytes.len() {
                assert_eq!(parse_hello(&bytes[..end]), HelloVerdict::Incomplete, "{end} of {}", bytes.len());
            }
        }
    }

    #[test]
    fn what_hides_its_name_is_told() {
        let encrypted = hello(&[server_names(&["public.example"]), (ENCRYPTED_CLIENT_HELLO, vec![0; 9])]);
        let expected = HelloVerdict::Hello { name: Some("public.example".into()), is_encrypted: true };
        assert_eq!(parse_hello(&records(&encrypted, 999)), expected);
        let nameless = HelloVerdict::Hello { name: None, is_encrypted: false };
        assert_eq!(parse_hello(&records(&hello(&[]), 999)), nameless);
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_none() {
        for bytes in [
            b"GET / HTTP/1.1".to_vec(),
            b"SSH-2.0-x".to_vec(),
            vec![HANDSHAKE, 2, 0, 0, 1, 1],
            records(&hello(&[server_names(&["a.example", "b.example"])]), 999),
            records(&hello(&[server_names(&["a.example"]), server_names(&["b.example"])]), 999),
            records(&[2, 0, 0, 1, 0], 999),
        ] {
            assert_eq!(parse_hello(&bytes), HelloVerdict::NotTls, "{bytes:?}");
        }
    }
}
