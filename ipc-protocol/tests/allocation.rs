//! What bytes can make the decoder allocate. Alone in its program: it counts every allocation.

use ipc_protocol::{
    codec::{CodecError, Inbox, MAX_FRAME, MAX_MESSAGE, encode},
    message::{FromForkServer, FromProxy, ToForkServer, ToProxy},
};
use peak_alloc::PeakAlloc;
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use serde::de::DeserializeOwned;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Most that is allocated at once while `bytes` are taken, beyond what there was before.
fn peak<T: DeserializeOwned>(inbox: &mut Inbox, mut bytes: &[u8]) -> (usize, Result<(), CodecError>) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let mut take = || {
        while !bytes.is_empty() {
            let spare = inbox.spare();
            let len = bytes.len().min(spare.len());
            spare[..len].copy_from_slice(&bytes[..len]);
            inbox.filled(len);
            bytes = &bytes[len..];
            while inbox.next_message::<T>()?.is_some() {}
        }
        Ok(())
    };
    let result = take();
    (MEMORY.peak_usage().saturating_sub(before), result)
}

fn frame(flag: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len() + 1).expect("short");
    [&len.to_le_bytes()[..], &[flag], payload].concat()
}

/// What serde reserves ahead for a list, whatever length it claims.
const AHEAD: usize = 1024 * 1024;
/// Lists within lists in our messages, at most.
const NESTED: usize = 3;
/// Errors, headers, boxes.
const SMALL: usize = 64 * 1024;

/// The peak of `bytes` as every kind of message.
fn peak_of_all(bytes: &[u8]) -> usize {
    let peaks = [
        peak::<ToProxy>(&mut Inbox::default(), bytes).0,
        peak::<FromProxy>(&mut Inbox::default(), bytes).0,
        peak::<ToForkServer>(&mut Inbox::default(), bytes).0,
        peak::<FromForkServer>(&mut Inbox::default(), bytes).0,
    ];
    peaks.into_iter().fold(0, usize::max)
}

#[test]
fn bytes_allocate_no_more_than_the_limits_say() {
    // A frame's length.
    for len in [0, MAX_FRAME as u32 + 1, i32::MAX as u32, u32::MAX] {
        let peak = peak_of_all(&len.to_le_bytes());
        assert!(peak <= SMALL, "frame of {len}: {peak} bytes");
    }

    // A list's length in a message.
    let mut list = Vec::new();
    encode(&FromProxy::Processes { request: 1, processes: Vec::new() }, &mut list).expect("encodable");
    let at = list.len() - 8;
    for claimed in [1 << 16, 1 << 24, 1 << 40, u64::MAX] {
        list[at..].copy_from_slice(&claimed.to_le_bytes());
        let peak = peak_of_all(&list);
        assert!(peak <= AHEAD + SMALL, "list of {claimed}: {peak} bytes");
    }

    // Anything in one frame.
    let bytes = vec(prop_oneof![3 => Just(0u8), 2 => Just(1u8), 1 => Just(255u8), 1 => any::<u8>()], 0..400);
    let config = ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&(0..16u32, bytes), |(variant, bytes)| {
            let peak = peak_of_all(&frame(0, &[&variant.to_le_bytes()[..], &bytes].concat()));
            prop_assert!(peak <= MAX_FRAME + NESTED * AHEAD + SMALL, "{} bytes", peak);
            Ok(())
        })
        .expect("bounded");

    // A message that goes on and on.
    let piece = frame(1, &vec![0; MAX_FRAME - 1]);
    let mut inbox = Inbox::default();
    // Its buffer grows as much comes at once, to this and no further.
    let buffer = 4 * MAX_FRAME;
    let before = MEMORY.current_usage();
    let error = loop {
        let (peak, result) = peak::<String>(&mut inbox, &piece);
        assert!(peak <= MAX_MESSAGE + buffer + SMALL, "{peak} bytes at once");
        let kept = MEMORY.current_usage() - before;
        assert!(kept <= MAX_MESSAGE + buffer + SMALL, "{kept} bytes kept");
        if let Err(error) = result {
            break error;
        }
    };
    assert!(matches!(error, CodecError::MessageLength { .. }), "{error}");

    // The most that honest lengths can make of a whole message: a list of empty strings, grown by doubling.
    let mut wire = Vec::new();
    encode(&vec![String::new(); MAX_MESSAGE / 8 - 1], &mut wire).expect("encodable");
    let (peak, result) = peak::<Vec<String>>(&mut Inbox::default(), &wire);
    result.expect("a message");
    assert!(peak <= 8 * MAX_MESSAGE, "{peak} bytes");
}
