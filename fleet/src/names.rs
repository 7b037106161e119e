//! Names of nodes and sessions, as keys and subjects of the engine.

use std::{fmt, str::FromStr};

use ipc_protocol::SessionId;
use serde::{Deserialize, Serialize};

/// Name of a node: 1 to 64 characters of A-Z a-z 0-9 _ -.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Error for text that is no [`NodeName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node name {0:?} is not 1 to 64 characters of A-Z a-z 0-9 _ -")]
pub struct InvalidNodeName(String);

impl FromStr for NodeName {
    type Err = InvalidNodeName;

    fn from_str(text: &str) -> Result<Self, InvalidNodeName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if text.is_empty() || text.len() > 64 || !text.bytes().all(allowed) {
            return Err(InvalidNodeName(text.chars().take(80).collect()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for NodeName {
    type Error = InvalidNodeName;

    fn try_from(text: String) -> Result<Self, InvalidNodeName> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns a session's id as one token of a subject: a dot would begin another.
pub(crate) fn session_token(session: &SessionId) -> String {
    session.as_str().replace('.', "=2E")
}

/// Returns the session of a token; `None` for one that is none.
pub(crate) fn session_of_token(token: &str) -> Option<SessionId> {
    token.replace("=2E", ".").parse().ok()
}

/// Subject of the requests to a node.
pub(crate) fn request_subject(node: &NodeName) -> String {
    format!("node.{node}.cmd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_is_one_token_of_a_subject() {
        for good in ["a", "node-1", "gpu_2"] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in ["", "a.b", "*", ">", "a b", &"x".repeat(65)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_session_with_dots_is_one_token_and_comes_back() {
        for id in ["s-1", "a.b.c", ".hidden", "x_Y-9."] {
            let session: SessionId = id.parse().expect("an id");
            let token = session_token(&session);
            assert!(!token.contains('.'), "{token}");
            assert_eq!(session_of_token(&token), Some(session));
        }
    }
}
