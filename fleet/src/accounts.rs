//! Rights of the nodes at the engine's servers: a key for each, and what it may do with it.

use std::fmt::Write as _;

use nkeys::KeyPair;

use crate::{
    connection::inbox_prefix,
    log::STREAM,
    names::{NodeName, request_subject},
};

/// Streams of a fleet.
const STREAMS: [&str; 5] = ["KV_nodes", "KV_sessions", "KV_keys", STREAM, "OBJ_snaps"];
/// Requests to the engine about a stream, without its name. None changes or removes one.
const STREAM_REQUESTS: [&str; 8] = [
    "STREAM.CREATE",
    "STREAM.INFO",
    "STREAM.MSG.GET",
    "DIRECT.GET",
    "CONSUMER.CREATE",
    "CONSUMER.INFO",
    "CONSUMER.DELETE",
    "CONSUMER.MSG.NEXT",
];

/// Key of a node.
#[derive(derive_more::Debug)]
pub struct NodeKey {
    node: NodeName,
    public: String,
    #[debug(skip)]
    seed: String,
}

impl NodeKey {
    /// Makes a key for a node.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn generate(node: NodeName) -> Result<Self, nkeys::error::Error> {
        let seed = KeyPair::new_user().seed()?;
        Self::from_seed(node, &seed)
    }

    /// Takes the key that a node has.
    ///
    /// # Errors
    /// The text is no seed.
    pub fn from_seed(node: NodeName, seed: &str) -> Result<Self, nkeys::error::Error> {
        let public = KeyPair::from_seed(seed.trim())?.public_key();
        Ok(Self { node, public, seed: seed.trim().to_owned() })
    }

    /// The node.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Secret half of the key, for the node's `--fleet-nkey`.
    pub fn seed(&self) -> &str {
        &self.seed
    }
}

/// Writes the part of nats-server's configuration that admits these nodes, each with the rights to what is its own.
///
/// A node can write no other's row, hear no other's requests, and neither change nor remove a bucket. It can write the row of any session, and
/// remove its events, as it does for those that are deleted: the owner is checked by compare-and-set among nodes that keep to it, and not against one that does not.
pub fn account_configuration(keys: &[NodeKey]) -> String {
    let mut text = String::from("authorization {\n  users: [\n");
    for NodeKey { node, public, .. } in keys {
        let requests = STREAM_REQUESTS.iter().flat_map(|request| {
            STREAMS.iter().map(move |stream| match request.starts_with("CONSUMER") || request.starts_with("DIRECT") {
                // A consumer's name and filter, or a subject, follow where there are some.
                true => vec![format!("$JS.API.{request}.{stream}"), format!("$JS.API.{request}.{stream}.>")],
                false => vec![format!("$JS.API.{request}.{stream}")],
            })
        });
        // Of what it has stored itself, as far as nodes keep to it: conversations that were replaced, and the events of deleted sessions.
        let purges = ["OBJ_snaps", STREAM].map(|stream| format!("$JS.API.STREAM.PURGE.{stream}"));
        let requests = requests.flatten().chain(purges);
        let own = ["$JS.API.INFO".to_owned(), format!("$KV.nodes.{node}")];
        let shared = ["$KV.sessions.>", "$KV.keys.>", "ev.>", "$O.snaps.>", "node.*.cmd", "_INBOX.>", "$JS.FC.>"]
            .map(str::to_owned);
        let publish: Vec<String> = own.into_iter().chain(shared).chain(requests).collect();
        let subscribe = [request_subject(node), format!("{}.>", inbox_prefix(node))];
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "    # {node}\n    {{ nkey: {public}, permissions: {{\n        publish: {},\n        subscribe: {}\n    }} }}",
            list(&publish),
            list(&subscribe)
        );
    }
    text.push_str("  ]\n}\n");
    text
}

fn list(subjects: &[String]) -> String {
    let quoted: Vec<String> = subjects.iter().map(|subject| format!("\"{subject}\"")).collect();
    format!("[{}]", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_from_its_seed_and_is_in_no_debug_output() {
        let node: NodeName = "a".parse().expect("a name");
        let key = NodeKey::generate(node.clone()).expect("a key");
        let again = NodeKey::from_seed(node.clone(), &format!("{}\n", key.seed())).expect("the same");
        assert_eq!(account_configuration(&[again]), account_configuration(std::slice::from_ref(&key)));
        assert!(!format!("{key:?}").contains(key.seed()));
        assert!(NodeKey::from_seed(node, "nonsense").is_err());
    }

    #[test]
    fn each_node_writes_its_own_row_and_hears_its_own_requests() {
        let keys: Vec<NodeKey> = ["a", "b"]
            .map(|name| NodeKey::generate(name.parse().expect("a name")).expect("a key"))
            .into_iter()
            .collect();
        let text = account_configuration(&keys);
        for name in ["a", "b"] {
            assert_eq!(text.matches(&format!("\"$KV.nodes.{name}\"")).count(), 1);
            assert_eq!(text.matches(&format!("[\"node.{name}.cmd\", \"_INBOX.{name}.>\"]")).count(), 1);
        }
        assert!(!text.contains("STREAM.DELETE") && !text.contains("STREAM.UPDATE"));
        assert!(keys.iter().all(|key| !text.contains(key.seed())));
    }
}
