//! Every message comes back as it was sent.

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use ipc_protocol::{
    EndReason, Envelope, Event, Operation, PermissionAnswer, ResolvedBy, WireError,
    codec::{Inbox, MessageAssembler, encode, encode_packets},
    message::{FromForkServer, FromProxy, ProxyCommand, ToForkServer, ToProxy},
};
use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{receive, values};

/// Defines a test that the random values of a type have each of its variants. A variant that is not listed does not
/// compile: the match has no wildcard.
macro_rules! every_variant_is_made {
    ($test:ident, $type:ident, $strategy:expr, [$($variant:ident),* $(,)?]) => {
        #[test]
        fn $test() {
            let name = |value: &$type| match value {
                $($type::$variant { .. } => stringify!($variant),)*
            };
            let mut missing = BTreeSet::from([$(stringify!($variant)),*]);
            let mut runner = TestRunner::deterministic();
            let strategy = $strategy;
            for _ in 0..1000 {
                missing.remove(name(&strategy.new_tree(&mut runner).expect("a value").current()));
            }
            assert_eq!(missing, BTreeSet::new(), "never made");
        }
    };
}

/// As [`every_variant_is_made`], for a type that is `non_exhaustive`: serde lists its variants.
macro_rules! every_serde_variant_is_made {
    ($test:ident, $type:ident, $strategy:expr) => {
        #[test]
        fn $test() {
            let refused = serde_json::from_str::<$type>(r#""no variant""#).expect_err("no variant").to_string();
            let (_, variants) = refused.split_once("expected one of ").expect("a list of them");
            let mut missing: BTreeSet<String> = variants.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            assert!(missing.len() > 4, "{refused}");
            let mut runner = TestRunner::deterministic();
            let strategy = $strategy;
            for _ in 0..4000 {
                let value: $type = strategy.new_tree(&mut runner).expect("a value").current();
                missing.remove(&match serde_json::to_value(&value).expect("JSON") {
                    Value::String(unit) => unit,
                    Value::Object(tagged) => tagged.into_iter().next().expect("a tag").0,
                    other => panic!("{other}"),
                });
            }
            assert_eq!(missing, BTreeSet::new(), "never made");
        }
    };
}

every_variant_is_made!(every_message_to_a_proxy_is_made, ToProxy, values::to_proxy(), [Hello, Request, GiveUp, Ack,]);
every_variant_is_made!(
    every_command_to_a_proxy_is_made,
    ProxyCommand,
    values::proxy_command(),
    [Start, Prompt, Steer, Operate, Abort, Permission, ListProcesses, Kill, Ping,]
);
every_variant_is_made!(
    every_message_from_a_proxy_is_made,
    FromProxy,
    values::from_proxy(),
    [
        Hello,
        Started,
        Event,
        TurnEnded,
        Processes,
        Receipt,
        Reply,
        NativeSession,
        Done,
        Failed,
        Fact,
        AgentExited,
        Ended,
        Attached,
    ]
);
every_variant_is_made!(
    every_message_to_the_fork_server_is_made,
    ToForkServer,
    values::to_fork_server(),
    [Hello, Fork, Kill, List, Adopt, View, Probe, Lease,]
);
every_variant_is_made!(
    every_message_from_the_fork_server_is_made,
    FromForkServer,
    values::from_fork_server(),
    [Hello, Forked, ForkFailed, Observed, Listed, ProxyGone, Detached,]
);
every_serde_variant_is_made!(every_event_is_made, Event, values::event());

/// As [`every_variant_is_made`], for errors: `WireError` is matched as the others are.
mod errors {
    use super::*;

    every_variant_is_made!(
        every_error_is_made,
        WireError,
        values::wire_error(),
        [
            ProgramNotFound,
            CwdMissing,
            Spawn,
            FdsExhausted,
            Busy,
            Unsupported,
            UnknownProcess,
            UnknownPermission,
            UnknownOption,
            Deadline,
            AgentDied,
            NativeSessionMissing,
            AgentRefused,
            AgentProtocol,
            Protocol,
            VersionMismatch,
            Survivors,
            System,
        ]
    );
}

every_variant_is_made!(
    every_operation_is_made,
    Operation,
    values::operation(),
    [SetModel, SetMode, SetThinking, Compact, CompactWith, GetState, GetMessages, ListSessions, ListChoices, Native,]
);
every_variant_is_made!(
    every_answer_is_made,
    PermissionAnswer,
    values::permission_answer(),
    [Allow, Deny, Option, AllowWith, DenyWith, Cancelled,]
);
every_serde_variant_is_made!(everybody_who_answers_is_made, ResolvedBy, values::resolved_by());
every_serde_variant_is_made!(every_end_is_made, EndReason, values::end_reason());

/// Over a stream in pieces of `sizes`.
fn streamed<T: Serialize + DeserializeOwned>(messages: &[T], sizes: Vec<usize>) -> Vec<T> {
    let mut wire = Vec::new();
    for message in messages {
        encode(message, &mut wire).expect("encodable");
    }
    receive(&mut Inbox::default(), &wire, sizes.into_iter().cycle()).expect("decodable")
}

/// Over a packet socket.
fn sent_as_packets<T: Serialize + DeserializeOwned>(messages: &[T]) -> Vec<T> {
    let mut assembler = MessageAssembler::default();
    let packets = messages.iter().flat_map(|message| encode_packets(message).expect("encodable"));
    packets.filter_map(|packet| assembler.frame(&packet).expect("decodable")).collect()
}

proptest! {
    #![proptest_config(Config { cases: 256, failure_persistence: None, ..Config::default() })]

    #[test]
    fn messages_between_host_and_proxy_come_back(
        to in vec(values::to_proxy(), 1..6), from in vec(values::from_proxy(), 1..6), sizes in vec(1..80usize, 1..20),
    ) {
        prop_assert_eq!(streamed(&to, sizes.clone()), to);
        prop_assert_eq!(streamed(&from, sizes), from);
    }

    #[test]
    fn messages_between_host_and_fork_server_come_back(
        to in vec(values::to_fork_server(), 1..6), from in vec(values::from_fork_server(), 1..6),
    ) {
        prop_assert_eq!(sent_as_packets(&to), to);
        prop_assert_eq!(sent_as_packets(&from), from);
    }

    #[test]
    fn a_handover_comes_back(handovers in vec(values::handover(), 1..3)) {
        prop_assert_eq!(sent_as_packets(&handovers), handovers);
    }

    #[test]
    fn events_come_back_from_json(event in values::event(), offset in any::<u64>(), turn in any::<Option<u64>>()) {
        let session = Arc::new("s-1".parse().expect("a valid id"));
        let envelope = Envelope { offset, created_at: SystemTime::UNIX_EPOCH, session, turn, metadata: None, event };
        let json = envelope.to_json().expect("JSON");
        let text = json.to_string();
        let back = Envelope::from_json(serde_json::from_str(&text).expect("JSON")).expect("an envelope");
        prop_assert_eq!(back, envelope, "{}", text);
    }

    #[test]
    fn an_event_weighs_what_its_texts_do(event in values::event()) {
        let texts = serde_json::to_string(&event).expect("JSON").len();
        prop_assert!(event.weight() >= 160 && event.weight() <= 4 * texts + 2000, "{} of {}", event.weight(), texts);
    }
}
