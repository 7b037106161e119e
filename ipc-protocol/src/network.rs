//! Network of a session: the hosts that it may reach, and its connections.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::ProcessId;

/// Port of the HTTP proxy in the network of a session.
pub const EGRESS_PORT: u16 = 61080;

/// Port in the network of a session at which its model is found, where the model's key stays outside.
pub const MODEL_PORT: u16 = 61081;

/// Address of a session's model, and its key, which requests get on the way out of the session's network.
#[derive(Clone, derive_more::Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelUpstream {
    /// True for TLS.
    pub is_encrypted: bool,
    /// Name or address of the host.
    pub host: String,
    /// Port of the host.
    pub port: u16,
    /// Path below which requests are passed on: empty, or with a slash at its beginning and none at its end.
    pub path: String,
    /// Key that the session has in place of the real one.
    #[debug(skip)]
    pub placeholder: String,
    /// Key; secret.
    #[debug(skip)]
    pub key: String,
}

/// Hosts that a session's processes may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum NetworkAccess {
    /// Whatever the user may.
    #[default]
    Host,
    /// Nothing but the session's own services.
    Off,
    /// The session's own services, and these hosts.
    Allow(Vec<NetworkRule>),
}

impl NetworkAccess {
    /// Returns whether the session has a network of its own.
    pub fn is_own(&self) -> bool {
        *self != Self::Host
    }

    /// Hosts that are allowed.
    pub fn rules(&self) -> &[NetworkRule] {
        match self {
            Self::Host | Self::Off => &[],
            Self::Allow(rules) => rules,
        }
    }
}

impl fmt::Display for NetworkAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Off => f.write_str("off"),
            Self::Allow(rules) => {
                let rules: Vec<String> = rules.iter().map(NetworkRule::to_string).collect();
                write!(f, "allow={}", rules.join(","))
            }
        }
    }
}

/// Allowed host: a name, `*.NAME` for all names below one, or an address; with `:PORT` for a port other than 80 and 443.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkRule {
    /// Name in lower case without the dot at its end, or address.
    host: String,
    /// True for all names below `host`, and not `host` itself.
    below: bool,
    /// Port; `None` for 80 and 443.
    port: Option<u16>,
}

/// Error for text that is no [`NetworkRule`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} names no host: write `api.example.com`, `*.example.com`, `192.0.2.1` or `HOST:PORT`, without scheme and path"
)]
pub struct InvalidNetworkRule(pub String);

impl NetworkRule {
    /// Ports of a rule that names none.
    pub const PORTS: [u16; 2] = [80, 443];

    /// Returns whether the rule allows a host, as [`normal_host`] writes it, and a port.
    pub fn allows(&self, host: &str, port: u16) -> bool {
        self.port.map_or(Self::PORTS.contains(&port), |own| own == port) && self.names(host)
    }

    /// Returns whether the rule is about a host.
    pub fn names(&self, host: &str) -> bool {
        match self.below {
            true => host.strip_suffix(&self.host).is_some_and(|label| label.len() > 1 && label.ends_with('.')),
            false => host == self.host,
        }
    }

    /// Address of the rule, where it names one.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Port of the rule, where it names one.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Returns whether it is about all names below one.
    pub fn is_wildcard(&self) -> bool {
        self.below
    }
}

/// Returns a host as rules write it: in lower case, without the dot at its end and the brackets of an address.
pub fn normal_host(host: &str) -> String {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    // An address has several spellings.
    host.parse::<IpAddr>().map_or(host, |address| address.to_canonical().to_string())
}

impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.below {
            f.write_str("*.")?;
        }
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?
        } else {
            f.write_str(&self.host)?
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for NetworkRule {
    type Err = InvalidNetworkRule;

    fn from_str(text: &str) -> Result<Self, InvalidNetworkRule> {
        let invalid = || InvalidNetworkRule(text.chars().take(100).collect());
        let (below, rest) = text.strip_prefix("*.").map_or((false, text), |rest| (true, rest));
        let (host, port) = match rest.rsplit_once(':') {
            // An address of version 6 has colons of its own.
            Some((host, port)) if host.ends_with(']') || !host.contains(':') => {
                (host, Some(port.parse().ok().filter(|port| *port != 0).ok_or_else(invalid)?))
            }
            _ => (rest, None),
        };
        let host = normal_host(host);
        let is_address = host.parse::<IpAddr>().is_ok();
        let is_label = |label: &str| {
            !label.is_empty()
                && label.len() < 64
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        let is_name =
            host.len() < 254 && host.split('.').all(is_label) && !host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if !(is_address && !below || is_name) {
            return Err(invalid());
        }
        Ok(Self { host, below, port })
    }
}

impl TryFrom<String> for NetworkRule {
    type Error = InvalidNetworkRule;

    fn try_from(text: String) -> Result<Self, InvalidNetworkRule> {
        text.parse()
    }
}

impl From<NetworkRule> for String {
    fn from(rule: NetworkRule) -> Self {
        rule.to_string()
    }
}

/// Connection of a session to a host, when it has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkConnection {
    /// Name or address, as the session asked for it.
    pub host: String,
    /// Port of the host.
    pub port: u16,
    /// Bytes from the session.
    pub sent: u64,
    /// Bytes to the session.
    pub received: u64,
    /// Time from the request to the end, in milliseconds.
    pub duration_ms: u64,
    /// Process that asked, where it was found.
    pub process: Option<ProcessId>,
}

/// Connection that a session was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkRefusal {
    /// Name or address, as the session asked for it.
    pub host: String,
    /// Port; 0 for a name that was only looked up.
    pub port: u16,
    /// Reason, for people.
    pub reason: String,
    /// Process that asked, where it was found.
    pub process: Option<ProcessId>,
}

/// Access to a file that a session in a sandbox was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileRefusal {
    /// Path of the file, or of the directory that something was to be made in.
    pub path: String,
    /// Rights that were missing, as the kernel names them: `read_file`, `write_file`, `make_reg`, …
    pub access: Vec<String>,
    /// Process that asked, if it still runs.
    pub process: Option<ProcessId>,
    /// Name of its program, as the kernel has it.
    pub command: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> NetworkRule {
        text.parse().expect("a rule")
    }

    #[test]
    fn a_rule_allows_its_host_and_nothing_that_looks_like_it() {
        for (text, host, port, is_allowed) in [
            ("api.example.com", "api.example.com", 443, true),
            ("api.example.com", "api.example.com", 80, true),
            ("api.example.com", "api.example.com", 22, false),
            ("API.example.com.", "api.example.com", 443, true),
            ("api.example.com", "api.example.com.evil.org", 443, false),
            ("api.example.com", "xapi.example.com", 443, false),
            ("*.example.com", "a.example.com", 443, true),
            ("*.example.com", "a.b.example.com", 443, true),
            ("*.example.com", "example.com", 443, false),
            ("*.example.com", "evilexample.com", 443, false),
            ("*.example.com", ".example.com", 443, false),
            ("git.example.com:22", "git.example.com", 22, true),
            ("git.example.com:22", "git.example.com", 443, false),
            ("127.0.0.1:8080", "127.0.0.1", 8080, true),
            ("127.0.0.1:8080", "127.0.0.2", 8080, false),
            ("[::1]:80", "::1", 80, true),
        ] {
            assert_eq!(rule(text).allows(&normal_host(host), port), is_allowed, "{text} and {host}:{port}");
        }
        // Another spelling of an address is the same address.
        assert!(rule("127.0.0.1").allows(&normal_host("[::ffff:127.0.0.1]"), 80));
    }

    #[test]
    fn text_that_names_no_host_is_no_rule() {
        for text in [
            "",
            "*",
            "*.",
            "https://a.b",
            "a.b/c",
            "a..b",
            "a b",
            "a:0",
            "a:x",
            "*.1.2.3.4",
            "1.2.3",
            "user@a.b",
            "a.b:80:90",
        ] {
            assert!(text.parse::<NetworkRule>().is_err(), "{text:?}");
        }
        for text in ["a.b", "*.a.b", "a.b:8443", "192.0.2.1", "[::1]:443", "localhost"] {
            assert_eq!(rule(text).to_string(), text);
        }
    }

    #[test]
    fn access_is_a_word_or_a_list() {
        for (access, json) in [
            (NetworkAccess::Off, r#""off""#),
            (NetworkAccess::Host, r#""host""#),
            (NetworkAccess::Allow(vec![rule("a.b")]), r#"{"allow":["a.b"]}"#),
        ] {
            assert_eq!(serde_json::to_string(&access).expect("JSON"), json);
            assert_eq!(serde_json::from_str::<NetworkAccess>(json).expect("read"), access);
        }
    }
}
