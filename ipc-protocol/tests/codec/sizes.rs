//! Round trips at every size around the limits, split anywhere.

use ipc_protocol::{
    codec::{CodecError, Inbox, MAX_FRAME, MAX_MESSAGE, MessageAssembler, encode, encode_packets},
    message::FromProxy,
};
use proptest::{collection::vec, prelude::*};

use crate::receive;

/// What a string's length takes on the wire.
const PREFIX: usize = 8;
/// Length field and flag.
const HEADER: usize = 5;

/// A message whose encoding has `size` bytes.
fn message(size: usize) -> String {
    let mut text = "abcdefghijklm nopqrstuvwxyz".repeat(size / 27 + 1);
    text.truncate(size - PREFIX);
    assert_eq!(text.len() + PREFIX, size);
    text
}

fn encoded(message: &String) -> Vec<u8> {
    let mut wire = Vec::new();
    encode(message, &mut wire).expect("encodable");
    wire
}

fn sizes() -> impl Iterator<Item = usize> {
    let around = |size: usize| size - 20..=size + 20;
    // A frame has one byte for its flag: the limits of one, two and three frames are all near these.
    (PREFIX..PREFIX + 20).chain(around(MAX_FRAME)).chain(around(2 * MAX_FRAME)).chain(around(3 * MAX_FRAME)).chain([
        1024 * 1024 + 1,
        MAX_MESSAGE / 2,
        MAX_MESSAGE - 1,
        MAX_MESSAGE,
    ])
}

#[test]
fn every_size_around_a_limit_comes_back() {
    for size in sizes() {
        let message = message(size);
        let wire = encoded(&message);
        let frames = size.div_ceil(MAX_FRAME - 1);
        assert_eq!(wire.len(), size + frames * HEADER, "{size}");
        let mut inbox = Inbox::default();
        let back: Vec<String> = receive(&mut inbox, &wire, []).expect("decodable");
        assert!(back == [message], "{size}");
    }
}

#[test]
fn packets_carry_what_streams_do() {
    for size in sizes().filter(|size| *size < MAX_MESSAGE / 2) {
        let message = message(size);
        let packets = encode_packets(&message).expect("encodable");
        let mut assembler = MessageAssembler::default();
        let (last, first) = packets.split_last().expect("a packet");
        for packet in first {
            assert_eq!(packet.len(), MAX_FRAME);
            assert_eq!(assembler.frame::<String>(packet).expect("valid"), None);
        }
        assert!(assembler.frame::<String>(last).expect("valid") == Some(message), "{size}");
    }
}

#[test]
fn a_message_over_the_limit_is_refused_and_leaves_no_trace() {
    let mut wire = encoded(&message(100));
    let before = wire.clone();
    let error = encode(&message(MAX_MESSAGE + 1), &mut wire).expect_err("too long");
    assert!(matches!(error, CodecError::MessageLength { len } if len == MAX_MESSAGE + 1), "{error}");
    assert_eq!(wire, before);
}

/// Every cut at which a header could be torn, and every cut of a small message.
#[test]
fn a_message_split_in_two_comes_back() {
    for size in [PREFIX, PREFIX + 40, MAX_FRAME - 1, MAX_FRAME, 2 * MAX_FRAME + 7] {
        let message = message(size);
        let wire = encoded(&message);
        let near = |at: usize| at.saturating_sub(HEADER + 2)..=at + HEADER + 2;
        let frame = MAX_FRAME + HEADER - 1;
        let cuts = near(0).chain(near(frame)).chain(near(2 * frame)).chain(near(wire.len()));
        for cut in cuts.filter(|cut| *cut < wire.len()) {
            let mut inbox = Inbox::default();
            let back: Vec<String> = receive(&mut inbox, &wire, [cut]).expect("decodable");
            assert!(back == [message.clone()], "{size} cut at {cut}");
        }
    }
}

/// A message of many small parts whose encoding fills a frame, or the largest message, to the last byte: what a decoder
/// counts against its limit is what is there.
#[test]
fn a_message_of_many_parts_may_fill_its_limit() {
    for size in [MAX_FRAME - 1, MAX_MESSAGE] {
        let part = "x".repeat(3);
        let parts = size / (PREFIX + part.len()) - 10;
        let mut list = vec![part; parts];
        let used = PREFIX + parts * (PREFIX + 3);
        list.push("y".repeat(size - used - PREFIX));
        let mut wire = Vec::new();
        encode(&list, &mut wire).expect("encodable");
        assert_eq!(wire.len(), size + size.div_ceil(MAX_FRAME - 1) * HEADER);
        let back: Vec<Vec<String>> = receive(&mut Inbox::default(), &wire, []).expect("decodable");
        assert!(back == [list], "{size}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sizes_split_anywhere_come_back(
        lengths in vec(prop_oneof![
            4 => PREFIX..200usize,
            2 => MAX_FRAME - 20..MAX_FRAME + 20,
            1 => PREFIX..4 * MAX_FRAME,
        ], 1..12),
        pieces in vec(prop_oneof![4 => 1..40usize, 1 => 1..100_000usize], 1..200),
    ) {
        let messages: Vec<_> = lengths.into_iter().map(message).collect();
        let wire: Vec<u8> = messages.iter().flat_map(encoded).collect();
        let back: Vec<String> = receive(&mut Inbox::default(), &wire, pieces.into_iter().cycle()).expect("decodable");
        prop_assert!(back == messages);
    }

    #[test]
    fn what_is_cut_short_is_waited_for(size in PREFIX..3 * MAX_FRAME, cut in any::<prop::sample::Index>()) {
        let mut wire = Vec::new();
        encode(&FromProxy::Done { request: 1 }, &mut wire).expect("encodable");
        let text = message(size);
        let event = ipc_protocol::Event::Text { text };
        let second = FromProxy::Event { turn: 1, event };
        encode(&second, &mut wire).expect("encodable");
        let first_len = HEADER + 4 + 8;
        let cut = first_len + cut.index(wire.len() - first_len);
        let mut inbox = Inbox::default();
        let back: Vec<FromProxy> = receive(&mut inbox, &wire[..cut], []).expect("decodable");
        prop_assert_eq!(back, [FromProxy::Done { request: 1 }]);
        let back: Vec<FromProxy> = receive(&mut inbox, &wire[cut..], []).expect("decodable");
        prop_assert!(back == [second]);
    }
}
