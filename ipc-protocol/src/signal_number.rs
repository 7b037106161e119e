//! Any signal of Linux, by its number or name.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Names of the signals 1 to 31 on Linux (all architectures but MIPS, SPARC and Alpha), without `SIG`.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// Other names of signals.
const ALIASES: [(&str, u8); 4] = [("IOT", 6), ("CLD", 17), ("POLL", 29), ("UNUSED", 31)];

/// Number of a signal: 1 to 64. In JSON its name, as in `"SIGINT"`; a number is accepted.
///
/// ```
/// use ipc_protocol::SignalNumber;
///
/// let signal: SignalNumber = "SIGWINCH".parse().unwrap();
/// assert_eq!((signal.number(), signal.to_string().as_str()), (28, "SIGWINCH"));
/// assert_eq!("winch".parse(), Ok(signal));
/// assert_eq!("28".parse(), Ok(signal));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignalNumber(u8);

impl SignalNumber {
    /// The greatest number.
    pub const MAX: i32 = 64;

    /// Returns the signal of this number, if there is one.
    pub fn new(number: i32) -> Option<Self> {
        u8::try_from(number).ok().filter(|number| (1..=Self::MAX).contains(&i32::from(*number))).map(Self)
    }

    /// Returns the number on Linux.
    pub fn number(self) -> i32 {
        i32::from(self.0)
    }
}

impl fmt::Display for SignalNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get(usize::from(self.0) - 1) {
            Some(name) => f.pad(&format!("SIG{name}")),
            None => f.pad(&self.0.to_string()),
        }
    }
}

/// Error for text that names no [`SignalNumber`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown signal {0:?}: give a name, as in SIGINT, or a number from 1 to 64")]
pub struct InvalidSignal(pub String);

impl FromStr for SignalNumber {
    type Err = InvalidSignal;

    fn from_str(text: &str) -> Result<Self, InvalidSignal> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let named = NAMES.iter().zip(1..).find(|(known, _)| **known == name).map(|(_, number)| Self(number));
        let named = named.or_else(|| ALIASES.iter().find(|(known, _)| *known == name).map(|(_, number)| Self(*number)));
        let given = || text.parse().ok().and_then(Self::new);
        named.or_else(given).ok_or_else(|| InvalidSignal(text.chars().take(80).collect()))
    }
}

impl Serialize for SignalNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SignalNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrNumber;
        impl de::Visitor<'_> for NameOrNumber {
            type Value = SignalNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a signal, as in \"SIGINT\", or a number from 1 to 64")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SignalNumber, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<SignalNumber, E> {
                let signal = i32::try_from(number).ok().and_then(SignalNumber::new);
                signal.ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }
        }
        deserializer.deserialize_any(NameOrNumber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Signal;

    #[test]
    fn every_signal_parses_back() {
        for number in 1..=SignalNumber::MAX {
            let signal = SignalNumber::new(number).expect("a signal");
            assert_eq!(signal.number(), number);
            assert_eq!(signal.to_string().parse(), Ok(signal));
            let json = serde_json::to_string(&signal).expect("JSON");
            assert_eq!(serde_json::from_str::<SignalNumber>(&json).expect("parses"), signal);
            assert_eq!(serde_json::from_str::<SignalNumber>(&number.to_string()).expect("parses"), signal);
        }
        for (signal, name, number) in Signal::ALL {
            assert_eq!(name.parse::<SignalNumber>().map(SignalNumber::number), Ok(number), "{signal}");
        }
        assert_eq!("POLL".parse::<SignalNumber>(), "sigio".parse());
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in ["", "0", "65", "-9", "SIG", "INTERRUPT", "9.0"] {
            assert!(text.parse::<SignalNumber>().is_err(), "{text}");
        }
        for json in ["0", "65", "-1", "null", "[9]", "\"\"", "2.5"] {
            assert!(serde_json::from_str::<SignalNumber>(json).is_err(), "{json}");
        }
    }
}
