//! Answers to the session's questions for addresses. Pure.
//!
//! No question leaves the machine. A name that is allowed gets an address of the session's own network, on which the proxy listens;
//! nothing else gets any.

use std::net::Ipv4Addr;

/// Most names that get an address.
const MAX_NAMES: usize = 4096;
/// Network of those addresses: the one for tests of benchmarks, which is routed nowhere.
const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 2]);
/// Seconds for which an answer may be kept.
const LIFETIME: u32 = 60;
const HEADER: usize = 12;
const REFUSED: u8 = 5;
const SERVER_FAILURE: u8 = 2;
const FORMAT_ERROR: u8 = 1;
const A: u16 = 1;
const INTERNET: u16 = 1;

/// Names with an address.
#[derive(Debug, Default)]
pub(super) struct NameTable(Vec<String>);

impl NameTable {
    /// Returns the address of a name, and makes one up for a new name. `None` where there are too many.
    pub(super) fn address(&mut self, name: &str) -> Option<Ipv4Addr> {
        let at = self.0.iter().position(|known| known == name).unwrap_or(self.0.len());
        if at == self.0.len() {
            if at == MAX_NAMES {
                return None;
            }
            self.0.push(name.to_owned());
        }
        Some(Ipv4Addr::from_bits(FIRST + u32::try_from(at).ok()?))
    }

    /// Returns the name with an address.
    pub(super) fn name(&self, address: Ipv4Addr) -> Option<&str> {
        let at = address.to_bits().checked_sub(FIRST)?;
        self.0.get(usize::try_from(at).ok()?).map(String::as_str)
    }
}

/// Question of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DnsQuestion {
    pub(super) name: String,
    kind: u16,
    /// End of the question in the message.
    end: usize,
}

/// Reads the one question of a message. `None` for what is no question.
pub(super) fn parse_question(message: &[u8]) -> Option<DnsQuestion> {
    let flags = *message.get(2)?;
    // A standard query, with one question.
    if flags & 0xf8 != 0 || message.get(4..6)? != [0, 1] {
        return None;
    }
    let (mut labels, mut at) = (Vec::new(), HEADER);
    loop {
        let length = usize::from(*message.get(at)?);
        if length == 0 {
            break;
        }
        if length > 63 || labels.len() > 64 {
            return None;
        }
        let label = std::str::from_utf8(message.get(at + 1..at + 1 + length)?).ok()?;
        labels.push(label.to_ascii_lowercase());
        at += 1 + length;
    }
    let fields = message.get(at + 1..at + 5)?;
    let class = u16::from_be_bytes([fields[2], fields[3]]);
    let kind = u16::from_be_bytes([fields[0], fields[1]]);
    (class == INTERNET).then(|| DnsQuestion { name: labels.join("."), kind, end: at + 5 })
}

/// Builds the answer to a question that is allowed: `address` where there is one for it.
pub(super) fn answer(message: &[u8], question: &DnsQuestion, address: Option<Ipv4Addr>) -> Vec<u8> {
    let Some(address) = address else { return reply(message, question.end, SERVER_FAILURE, 0) };
    if question.kind != A {
        // The name is there, and has nothing of that kind.
        return reply(message, question.end, 0, 0);
    }
    let mut bytes = reply(message, question.end, 0, 1);
    // Its name is that of the question.
    bytes.extend([0xc0, HEADER as u8]);
    bytes.extend(A.to_be_bytes());
    bytes.extend(INTERNET.to_be_bytes());
    bytes.extend(LIFETIME.to_be_bytes());
    bytes.extend([0, 4]);
    bytes.extend(address.octets());
    bytes
}

/// Builds the answer to a question that is not allowed, or to what is no question.
pub(super) fn refusal(message: &[u8], question: Option<&DnsQuestion>) -> Option<Vec<u8>> {
    (message.len() >= HEADER).then(|| match question {
        Some(question) => reply(message, question.end, REFUSED, 0),
        None => reply(message, HEADER, FORMAT_ERROR, 0),
    })
}

/// Copies id and question, with no other section.
fn reply(message: &[u8], end: usize, code: u8, answers: u8) -> Vec<u8> {
    let mut bytes = message[..end].to_vec();
    bytes[2] = message[2] & 0x01 | 0x84;
    bytes[3] = 0x80 | code;
    bytes[4..HEADER].fill(0);
    bytes[5] = u8::from(end > HEADER);
    bytes[7] = answers;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &str, kind: u16) -> Vec<u8> {
        let mut message = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        for label in name.split('.') {
            message.push(u8::try_from(label.len()).expect("short"));
            message.extend(label.bytes());
        }
        message.push(0);
        message.extend(kind.to_be_bytes());
        message.extend(INTERNET.to_be_bytes());
        // An additional record, as most clients send.
        message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        message
    }

    #[test]
    fn an_allowed_name_has_an_address_that_leads_back_to_it() {
        let mut names = NameTable::default();
        let message = question("API.Example.com", A);
        let asked = parse_question(&message).expect("a question");
        assert_eq!(asked.name, "api.example.com");
        let address = names.address(&asked.name).expect("room");
        assert_eq!(names.address("other.example"), Some(Ipv4Addr::new(198, 18, 0, 3)));
        assert_eq!((names.address(&asked.name), names.name(address)), (Some(address), Some("api.example.com")));
        assert_eq!(names.name(Ipv4Addr::new(198, 18, 0, 1)), None);
        let bytes = answer(&message, &asked, Some(address));
        assert_eq!((&bytes[..4], &bytes[4..12]), (&[0xab, 0xcd, 0x85, 0x80][..], &[0, 1, 0, 1, 0, 0, 0, 0][..]));
        assert!(bytes.ends_with(&[0, 4, 198, 18, 0, 2]));
    }

    #[test]
    fn other_kinds_have_no_answer_and_other_names_a_refusal() {
        let message = question("api.example.com", 28);
        let asked = parse_question(&message).expect("a question");
        let bytes = answer(&message, &asked, Some(Ipv4Addr::new(198, 18, 0, 2)));
        assert_eq!((bytes[3], bytes[7], bytes.len()), (0x80, 0, asked.end));
        let refused = refusal(&message, Some(&asked)).expect("an answer");
        assert_eq!((refused[3], refused[7]), (0x85, 0));
    }

    #[test]
    fn what_is_no_question_gets_no_more_than_an_error() {
        for message in [&[][..], &[0; 11], &[0; 12], &question("a.b", A)[..14]] {
            assert_eq!(parse_question(message), None);
        }
        assert_eq!(refusal(&[0; 5], None), None);
        assert_eq!(refusal(&[0; 30], None).expect("an error").len(), HEADER);
        // A pointer in a question could lead anywhere.
        let mut message = question("a.b", A);
        message[HEADER] = 0xc0;
        assert_eq!(parse_question(&message), None);
        // An answer is no question.
        let mut message = question("a.b", A);
        message[2] |= 0x80;
        assert_eq!(parse_question(&message), None);
    }

    #[test]
    fn names_are_bounded() {
        let mut names = NameTable::default();
        for number in 0..MAX_NAMES {
            assert!(names.address(&format!("{number}.example")).is_some());
        }
        assert_eq!(names.address("more.example"), None);
    }
}
