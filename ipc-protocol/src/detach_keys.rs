//! The keys that detach a viewer, in what is typed.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Sequence of keys, as in docker and tmux: `ctrl-p,ctrl-q` or `ctrl-b,d`.
///
/// ```
/// use ipc_protocol::terminal::{DetachFilter, DetachKeys};
///
/// let keys: DetachKeys = "ctrl-p,ctrl-q".parse()?;
/// let mut filter = DetachFilter::new(Some(keys));
/// let mut typed = Vec::new();
/// assert!(!filter.take(b"ls\r\x10", &mut typed));
/// assert!(filter.take(b"\x11", &mut typed), "the sequence is complete");
/// assert_eq!(typed, b"ls\r");
/// # Ok::<(), ipc_protocol::terminal::InvalidKeys>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DetachKeys {
    keys: Vec<Key>,
    text: String,
}

/// Key with the bytes that a terminal may send for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    forms: Vec<Vec<u8>>,
}

impl Key {
    fn new(byte: u8, letter: Option<char>) -> Self {
        let mut forms = vec![vec![byte]];
        if let Some(letter) = letter {
            // As kitty's protocol has it, and xterm's modifyOtherKeys.
            let code = u32::from(letter);
            forms.extend(
                [format!("\x1b[{code};5u"), format!("\x1b[{code};5:1u"), format!("\x1b[27;5;{code}~")].map(Vec::from),
            );
        }
        Self { forms }
    }
}

/// Text that is no sequence of keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no key: write ctrl-X for a letter or one of [ \\ ] ^ _, or a character, with commas between keys")]
pub struct InvalidKeys(String);

impl FromStr for DetachKeys {
    type Err = InvalidKeys;

    fn from_str(text: &str) -> Result<Self, InvalidKeys> {
        let invalid = || InvalidKeys(text.to_owned());
        let key = |name: &str| match name.strip_prefix("ctrl-") {
            Some(name) => {
                let mut chars = name.chars();
                let (Some(c), None) = (chars.next().map(|c| c.to_ascii_lowercase()), chars.next()) else {
                    return Err(invalid());
                };
                match c {
                    'a'..='z' | '[' | '\\' | ']' | '^' | '_' => {
                        let byte = u8::try_from(c.to_ascii_uppercase()).map_err(|_| invalid())?;
                        Ok(Key::new(byte & 0x1f, Some(c)))
                    }
                    _ => Err(invalid()),
                }
            }
            None if name.len() == 1 && name.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Ok(Key::new(name.as_bytes()[0], None))
            }
            None => Err(invalid()),
        };
        let keys = text.split(',').map(key).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { keys, text: text.to_owned() })
    }
}

impl TryFrom<String> for DetachKeys {
    type Error = InvalidKeys;

    fn try_from(text: String) -> Result<Self, InvalidKeys> {
        text.parse()
    }
}

impl From<DetachKeys> for String {
    fn from(keys: DetachKeys) -> Self {
        keys.text
    }
}

impl fmt::Display for DetachKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Filter of what is typed: holds back the beginning of the sequence until it is clear what it becomes.
#[derive(Debug)]
pub struct DetachFilter {
    keys: Option<DetachKeys>,
    /// Number of keys that were typed of the sequence.
    matched: usize,
    held: Vec<u8>,
}

impl DetachFilter {
    /// Creates a filter; without keys nothing detaches.
    pub fn new(keys: Option<DetachKeys>) -> Self {
        Self { keys, matched: 0, held: Vec::new() }
    }

    /// Takes typed bytes, and appends what goes to the program to `out`. Returns true if the sequence is complete; what
    /// follows it is dropped.
    pub fn take(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(keys) = &self.keys else {
            out.extend_from_slice(bytes);
            return false;
        };
        while let Some(first) = bytes.first() {
            let form = keys.keys[self.matched].forms.iter().find(|form| bytes.starts_with(form));
            if let Some(form) = form {
                self.matched += 1;
                if self.matched == keys.keys.len() {
                    return true;
                }
                self.held.extend_from_slice(form);
                bytes = &bytes[form.len()..];
                continue;
            }
            if self.matched > 0 {
                out.append(&mut self.held);
                self.matched = 0;
                continue;
            }
            out.push(*first);
            bytes = &bytes[1..];
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> DetachKeys {
        text.parse().expect("keys")
    }

    #[test]
    fn keys_are_parsed() {
        assert_eq!(keys("ctrl-p,ctrl-q").keys.iter().map(|key| key.forms[0][0]).collect::<Vec<_>>(), [0x10, 0x11]);
        assert_eq!(keys("ctrl-B,d").keys.iter().map(|key| key.forms[0][0]).collect::<Vec<_>>(), [2, b'd']);
        assert_eq!(keys("ctrl-]").keys[0].forms[0], [0x1d]);
        for wrong in ["", "ctrl-", "ctrl-1", "alt-x", "ctrl-p,", "é"] {
            assert!(wrong.parse::<DetachKeys>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_sequence_detaches_however_it_arrives() {
        let typed = |parts: &[&[u8]]| {
            let mut filter = DetachFilter::new(Some(keys("ctrl-p,ctrl-q")));
            let mut out = Vec::new();
            let detached = parts.iter().any(|part| filter.take(part, &mut out));
            (detached, out)
        };
        assert_eq!(typed(&[b"ab\x10\x11c"]), (true, b"ab".to_vec()));
        assert_eq!(typed(&[b"\x10", b"\x11"]), (true, vec![]));
        assert_eq!(typed(&[b"\x1b[112;5u", b"\x1b[113;5:1u"]), (true, vec![]));
        assert_eq!(typed(&[b"\x10", b"x\x10\x10\x11"]), (true, b"\x10x\x10".to_vec()));
        assert_eq!(typed(&[b"\x10", b"x"]), (false, b"\x10x".to_vec()));
        assert_eq!(typed(&[b"\x11\x10"]), (false, b"\x11".to_vec()), "held back");
        assert!(!DetachFilter::new(None).take(b"\x10\x11", &mut Vec::new()));
    }
}
