//! Owners of the sessions, as this node sees them. Pure.

use std::{collections::BTreeMap, ops::Bound};

use ipc_protocol::SessionId;

use crate::{
    names::NodeName,
    records::{OwnershipRecord, SessionPhase},
};

/// Owner of a session, with the revision of its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedSession {
    /// Id of the session.
    pub session: SessionId,
    /// Its row.
    pub record: OwnershipRecord,
    /// Revision of the row: what the next change expects.
    pub revision: u64,
}

/// Table of the owners.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    rows: BTreeMap<SessionId, OwnershipRow>,
}

#[derive(Debug)]
struct OwnershipRow {
    record: OwnershipRecord,
    revision: u64,
}

impl SessionTable {
    /// Takes note of a row; `None` for one that was removed. What is older than what is known changes nothing. Returns true where it has
    /// another owner than before.
    pub(crate) fn observe(&mut self, session: &SessionId, revision: u64, record: Option<OwnershipRecord>) -> bool {
        if self.rows.get(session).is_some_and(|row| row.revision >= revision) {
            return false;
        }
        let Some(record) = record else {
            self.rows.remove(session);
            return false;
        };
        let node = record.node.clone();
        let before = self.rows.insert(session.clone(), OwnershipRow { record, revision });
        before.is_none_or(|before| before.record.node != node)
    }

    /// Returns the session with a key that was begun or changed last.
    pub(crate) fn with_key(&self, key: &str) -> Option<OwnedSession> {
        let with_key = self.rows.iter().filter(|(_, row)| row.record.facts.key.as_deref() == Some(key));
        // One that goes on counts before one that is over.
        let latest = with_key.max_by_key(|(_, row)| (row.record.facts.phase != SessionPhase::Ended, row.revision));
        latest.map(|(session, row)| owned(session, row))
    }

    /// Counts the sessions of a user that run, but one.
    pub(crate) fn running_of_user(&self, user: &str, but: &SessionId) -> usize {
        let running = self.rows.iter().filter(|(_, row)| row.record.facts.phase == SessionPhase::Running);
        running.filter(|(session, row)| row.record.facts.user.as_deref() == Some(user) && *session != but).count()
    }

    /// Returns the owner of a session.
    pub(crate) fn owner(&self, session: &SessionId) -> Option<OwnedSession> {
        self.rows.get(session).map(|row| owned(session, row))
    }

    /// Returns the sessions whose id begins with this text, in order, `most` of them at most.
    pub(crate) fn beginning_with(&self, text: &str, most: usize) -> Vec<OwnedSession> {
        let Ok(first) = text.parse::<SessionId>() else { return Vec::new() };
        let from = self.rows.range((Bound::Included(first), Bound::Unbounded));
        let matching = from.take_while(|(session, _)| session.as_str().starts_with(text));
        // The beginning of a chosen id may be another one's whole id.
        matching
            .filter(|(session, _)| session.is_minted())
            .take(most)
            .map(|(session, row)| owned(session, row))
            .collect()
    }

    /// Returns all sessions, in order.
    pub(crate) fn sessions(&self) -> Vec<OwnedSession> {
        self.rows.iter().map(|(session, row)| owned(session, row)).collect()
    }

    /// Returns the sessions of a node, in order.
    pub(crate) fn of_node(&self, node: &NodeName) -> Vec<OwnedSession> {
        let of_node = self.rows.iter().filter(|(_, row)| row.record.node == *node);
        of_node.map(|(session, row)| owned(session, row)).collect()
    }
}

fn owned(session: &SessionId, row: &OwnershipRow) -> OwnedSession {
    OwnedSession { session: session.clone(), record: row.record.clone(), revision: row.revision }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::SessionFacts;

    fn id(text: &str) -> SessionId {
        text.parse().expect("an id")
    }

    fn record(node: &str) -> OwnershipRecord {
        let node = node.parse().expect("a name");
        OwnershipRecord {
            node,
            incarnation: "1".into(),
            epoch: 1,
            facts: SessionFacts::default(),
            labels: BTreeMap::new(),
            snapshot: None,
            kill: None,
            from: None,
            is_deleted: false,
        }
    }

    fn owner(table: &SessionTable, session: &str) -> Option<String> {
        table.owner(&id(session)).map(|owned| owned.record.node.to_string())
    }

    #[test]
    fn the_latest_row_counts_whatever_comes_in_first() {
        let mut table = SessionTable::default();
        table.observe(&id("s"), 2, Some(record("b")));
        table.observe(&id("s"), 1, Some(record("a")));
        assert_eq!(owner(&table, "s").as_deref(), Some("b"));
        table.observe(&id("s"), 3, None);
        assert_eq!(owner(&table, "s"), None);
    }

    #[test]
    fn a_beginning_finds_its_sessions_in_order() {
        let mut table = SessionTable::default();
        let minted = |first: &str| format!("{first:0<8}-7c41-7d3e-8a12-0123456789ab");
        for (number, first) in ["ab2", "ab1", "abc", "b"].into_iter().enumerate() {
            table.observe(&id(&minted(first)), number as u64 + 1, Some(record("a")));
        }
        table.observe(&id("ab-1"), 9, Some(record("a")));
        let found = |text: &str, most| -> Vec<String> {
            table.beginning_with(text, most).into_iter().map(|owned| owned.session.to_string()).collect()
        };
        assert_eq!(found("ab", 9), ["ab1", "ab2", "abc"].map(minted), "none that was chosen");
        assert_eq!(found("ab", 1), [minted("ab1")], "bounded");
        assert_eq!(found("x", 9), [""; 0]);
        assert_eq!(found("not an id", 9), [""; 0]);
    }

    #[test]
    fn a_new_owner_is_told_once() {
        let mut table = SessionTable::default();
        assert!(table.observe(&id("s"), 1, Some(record("a"))));
        assert!(!table.observe(&id("s"), 2, Some(record("a"))), "another change");
        assert!(table.observe(&id("s"), 3, Some(record("b"))));
        assert!(!table.observe(&id("s"), 3, Some(record("b"))), "seen again");
        assert!(!table.observe(&id("s"), 4, None));
    }

    fn with(key: &str, user: &str, phase: SessionPhase) -> OwnershipRecord {
        let facts = SessionFacts { key: Some(key.into()), user: Some(user.into()), phase, ..SessionFacts::default() };
        OwnershipRecord { facts, ..record("a") }
    }

    #[test]
    fn a_key_is_that_of_the_session_that_goes_on() {
        let mut table = SessionTable::default();
        table.observe(&id("old"), 1, Some(with("k", "ada", SessionPhase::Ended)));
        table.observe(&id("new"), 2, Some(with("k", "ada", SessionPhase::Suspended)));
        table.observe(&id("other"), 3, Some(with("other", "ada", SessionPhase::Running)));
        // As when its record is archived.
        table.observe(&id("old"), 4, Some(with("k", "ada", SessionPhase::Ended)));
        let with_key = |table: &SessionTable| table.with_key("k").map(|owned| owned.session.to_string());
        assert_eq!(with_key(&table).as_deref(), Some("new"));
        table.observe(&id("new"), 5, None);
        assert_eq!(with_key(&table).as_deref(), Some("old"));
        table.observe(&id("old"), 6, None);
        assert_eq!(with_key(&table), None, "it ends with its sessions");
    }

    #[test]
    fn the_running_sessions_of_a_user_are_counted() {
        let mut table = SessionTable::default();
        for (number, (session, user, phase)) in [
            ("s-1", "ada", SessionPhase::Running),
            ("s-2", "ada", SessionPhase::Suspended),
            ("s-3", "bob", SessionPhase::Running),
            ("s-4", "ada", SessionPhase::Running),
        ]
        .into_iter()
        .enumerate()
        {
            table.observe(&id(session), number as u64 + 1, Some(with("k", user, phase)));
        }
        assert_eq!(table.running_of_user("ada", &id("none")), 2);
        assert_eq!(table.running_of_user("ada", &id("s-4")), 1, "but the one that starts");
    }

    #[test]
    fn the_sessions_of_a_node_are_its_own() {
        let mut table = SessionTable::default();
        table.observe(&id("s-1"), 1, Some(record("a")));
        table.observe(&id("s-2"), 2, Some(record("b")));
        let of_b = table.of_node(&"b".parse().expect("a name"));
        assert_eq!(of_b.iter().map(|owned| owned.session.as_str()).collect::<Vec<_>>(), ["s-2"]);
    }
}
