//! Bytes that no one of ours would send: a typed error, never a panic, never a hang.

use ipc_protocol::{
    ProcessId,
    codec::{CodecError, Inbox, MAX_FRAME, MAX_MESSAGE, MessageAssembler, encode},
    message::{FromForkServer, FromProxy, Hello, ProxyCommand, ToForkServer, ToProxy, VERSION},
};
use proptest::{collection::vec, prelude::*, sample::Index};
use serde::de::DeserializeOwned;

use crate::{receive, values};

/// A stream of one frame.
fn frame(flag: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len() + 1).expect("short");
    [&len.to_le_bytes()[..], &[flag], payload].concat()
}

/// Takes all that can be taken.
fn swallow<T: DeserializeOwned>(bytes: &[u8]) -> Result<usize, CodecError> {
    receive::<T>(&mut Inbox::default(), bytes, []).map(|messages| messages.len())
}

/// The bytes as every kind of message.
fn swallow_all(bytes: &[u8]) -> [Result<usize, CodecError>; 4] {
    [
        swallow::<ToProxy>(bytes),
        swallow::<FromProxy>(bytes),
        swallow::<ToForkServer>(bytes),
        swallow::<FromForkServer>(bytes),
    ]
}

#[test]
fn a_length_that_is_no_frames_is_refused_at_once() {
    for len in [0, MAX_FRAME as u32 + 1, 1 << 24, i32::MAX as u32, u32::MAX - 1, u32::MAX] {
        // Four bytes are enough: nothing is waited for or allocated.
        let error = swallow::<ToProxy>(&len.to_le_bytes()).expect_err("no frame");
        assert!(matches!(error, CodecError::FrameLength { len: told } if told == len as usize), "{error}");
    }
    assert!(matches!(MessageAssembler::default().frame::<ToProxy>(&[]), Err(CodecError::FrameLength { len: 0 })));
    let packet = vec![0; MAX_FRAME + 1];
    assert!(matches!(MessageAssembler::default().frame::<ToProxy>(&packet), Err(CodecError::FrameLength { .. })));
}

#[test]
fn unknown_flags_and_leftovers_are_refused() {
    assert!(matches!(swallow::<u8>(&frame(3, &[1])), Err(CodecError::Flag(3))));
    assert!(matches!(swallow::<u8>(&frame(255, &[])), Err(CodecError::Flag(255))));
    assert!(matches!(swallow::<u8>(&frame(0, &[1, 2, 3])), Err(CodecError::Trailing(2))));
    assert!(matches!(swallow::<u8>(&frame(0, &[])), Err(CodecError::Decode { len: 0, .. })));
    // The end of a message that had no beginning is a message of its own.
    assert!(matches!(swallow::<u8>(&frame(2, &[1])), Ok(1)));
    // One that goes on and on is refused when it is too long, not when memory is.
    let piece = frame(1, &vec![0; MAX_FRAME - 1]);
    let endless: Vec<u8> = piece.iter().copied().cycle().take(piece.len() * (MAX_MESSAGE / MAX_FRAME + 2)).collect();
    assert!(matches!(swallow::<String>(&endless), Err(CodecError::MessageLength { .. })));
}

/// A string or a list inside a message that claims more than there is.
#[test]
fn inner_lengths_that_lie_are_refused() {
    let mut text = Vec::new();
    encode(&ToProxy::Request { request: 1, command: ProxyCommand::Steer { prompt: "hello".into() } }, &mut text)
        .expect("encodable");
    let mut list = Vec::new();
    encode(&FromProxy::Processes { request: 1, processes: Vec::new() }, &mut list).expect("encodable");
    // Header, variant, request id; then the length.
    let at = 5 + 4 + 8;
    for claimed in [6, 1 << 16, 1 << 24, 1 << 32, 1 << 60, u64::MAX / 2, u64::MAX] {
        // The command's variant; a prompt of one part: their number, the part's variant, its length.
        for at in [at + 4, at + 4 + 8 + 4] {
            let mut text = text.clone();
            text[at..at + 8].copy_from_slice(&claimed.to_le_bytes());
            assert!(matches!(swallow::<ToProxy>(&text), Err(CodecError::Decode { .. })), "text of {claimed}");
        }
        list[at..at + 8].copy_from_slice(&claimed.to_le_bytes());
        assert!(matches!(swallow::<FromProxy>(&list), Err(CodecError::Decode { .. })), "list of {claimed}");
    }
}

/// The first message of every connection: these bytes are the same in every version, for the versions to be compared.
#[test]
fn hello_never_changes() {
    let hello = || Hello { version: 0x0102_0304, process: ProcessId { pid: 0x0506_0708, start_time: 0x090a_0b0c } };
    let bytes = [
        21, 0, 0, 0, 0, // length and flag
        0, 0, 0, 0, // variant
        4, 3, 2, 1, // version
        8, 7, 6, 5, // pid
        0x0c, 0x0b, 0x0a, 9, 0, 0, 0, 0, // start time
    ];
    fn check<T: serde::Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: T, bytes: &[u8]) {
        let mut wire = Vec::new();
        encode(&message, &mut wire).expect("encodable");
        assert_eq!(wire, bytes);
        assert_eq!(receive::<T>(&mut Inbox::default(), bytes, []).expect("decodable"), [message]);
    }
    check(ToProxy::Hello(hello()), &bytes);
    check(FromProxy::Hello(hello()), &bytes);
    check(ToForkServer::Hello(hello()), &bytes);
    check(FromForkServer::Hello(hello()), &bytes);
    assert_ne!(hello().version, VERSION, "a version that is not ours is read all the same");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_survived(bytes in vec(any::<u8>(), 0..300)) {
        drop(swallow_all(&bytes));
        drop(swallow_all(&frame(0, &bytes)));
    }

    /// As above, but the beginning is right, so that each variant's fields are what is random.
    #[test]
    fn random_fields_are_survived(variant in 0..32u32, bytes in vec(prop_oneof![Just(0u8), Just(1u8), any::<u8>()], 0..300)) {
        drop(swallow_all(&frame(0, &[&variant.to_le_bytes()[..], &bytes].concat())));
    }

    #[test]
    fn a_message_that_ends_early_or_late_is_refused(message in values::from_proxy(), cut in any::<Index>(), more in 1..40usize) {
        let mut wire = Vec::new();
        encode(&message, &mut wire).expect("encodable");
        let body = &wire[5..];
        prop_assert!(swallow::<FromProxy>(&frame(0, &body[..cut.index(body.len())])).is_err());
        let longer = [body, &vec![0; more][..]].concat();
        let refused = swallow::<FromProxy>(&frame(0, &longer));
        prop_assert!(matches!(refused, Err(CodecError::Trailing(left)) if left == more));
    }

    #[test]
    fn flipped_bytes_are_survived(message in values::to_proxy(), flips in vec((any::<Index>(), any::<u8>()), 1..6)) {
        let mut wire = Vec::new();
        encode(&message, &mut wire).expect("encodable");
        for (at, value) in flips {
            let at = at.index(wire.len());
            wire[at] = value;
        }
        drop(swallow_all(&wire));
    }
}
