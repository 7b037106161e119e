//! Two lanes on one stream: control overtakes bulk, and nothing else changes.

use ipc_protocol::codec::{Inbox, MAX_FRAME, Outbox};
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::receive;

/// A message: its lane, its number in the lane, and padding.
type Message = (bool, u32, String);

/// Bytes of a frame on the stream at most: length field and frame.
const FRAME: usize = 4 + MAX_FRAME;
/// What a message has beside its padding: a bool, a number and a length.
const FIXED: usize = 1 + 4 + 8;

#[derive(Clone, Debug)]
enum Step {
    Push {
        control: bool,
        padding: usize,
    },
    /// A part of what is waiting is written.
    Write(Index),
    /// All of what is offered is written.
    WriteChunk,
}

fn step() -> impl Strategy<Value = Step> {
    let padding = prop_oneof![
        8 => 0..100usize,
        2 => MAX_FRAME - 30..MAX_FRAME + 30,
        2 => 0..20 * MAX_FRAME,
    ];
    prop_oneof![
        3 => (any::<bool>(), padding).prop_map(|(control, padding)| Step::Push { control, padding }),
        3 => any::<Index>().prop_map(Step::Write),
        1 => Just(Step::WriteChunk),
    ]
}

/// A small control message on its way: number and how many bytes may be written before it is there.
struct Urgent {
    number: u32,
    allowance: usize,
}

struct Model {
    outbox: Outbox,
    inbox: Inbox,
    /// What each lane was given, and how many of it came.
    pushed: [u32; 2],
    received: Vec<Message>,
    urgent: Vec<Urgent>,
}

impl Model {
    fn push(&mut self, control: bool, padding: usize) {
        let number = self.pushed[usize::from(control)];
        self.pushed[usize::from(control)] += 1;
        let message: Message = (control, number, "p".repeat(padding));
        let before = self.outbox.len();
        if control {
            self.outbox.push_control(&message).expect("encodable");
        } else {
            self.outbox.push(&message).expect("encodable");
        }
        assert!(self.outbox.len() > before + padding);
        if control && padding + FIXED < MAX_FRAME {
            // The frame that is half written, the control messages before it, and itself.
            let ahead: usize = self.urgent.iter().map(|urgent| urgent.allowance).max().unwrap_or(FRAME);
            self.urgent.push(Urgent { number, allowance: ahead + padding + FIXED + 5 });
        }
    }

    fn write(&mut self, len: impl FnOnce(usize) -> usize) {
        let chunk = self.outbox.chunk();
        assert_eq!(chunk.is_empty(), self.outbox.is_empty());
        let chunk = self.outbox.chunk();
        let len = len(chunk.len()).min(chunk.len());
        let bytes = chunk[..len].to_vec();
        self.outbox.advance(len);
        let messages = receive::<Message>(&mut self.inbox, &bytes, []).expect("valid frames");
        for urgent in &mut self.urgent {
            urgent.allowance = urgent.allowance.saturating_sub(len);
        }
        for message in &messages {
            self.urgent.retain(|urgent| !(message.0 && message.1 == urgent.number));
        }
        assert!(self.urgent.iter().all(|urgent| urgent.allowance > 0), "a control message waited behind bulk");
        self.received.extend(messages);
    }

    /// The numbers that came of one kind, in the order they came.
    fn numbers(&self, is: impl Fn(&&Message) -> bool) -> Vec<u32> {
        self.received.iter().filter(is).map(|message| message.1).collect()
    }
}

/// Whether it is larger than a frame: such a control message goes with the bulk.
fn large(message: &Message) -> bool {
    message.2.len() + FIXED >= MAX_FRAME
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_control_overtakes(steps in vec(step(), 1..60)) {
        let mut model = Model {
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            pushed: [0; 2],
            received: Vec::new(),
            urgent: Vec::new(),
        };
        for step in steps {
            match step {
                Step::Push { control, padding } => model.push(control, padding),
                Step::Write(part) => model.write(|len| if len == 0 { 0 } else { part.index(len) + 1 }),
                Step::WriteChunk => model.write(|len| len),
            }
        }
        while !model.outbox.is_empty() {
            model.write(|len| len);
        }
        prop_assert_eq!(model.numbers(|message| !message.0), (0..model.pushed[0]).collect::<Vec<_>>());
        let small = model.numbers(|message| message.0 && !large(message));
        let mut control = [small.clone(), model.numbers(|message| message.0 && large(message))];
        prop_assert!(control.iter().all(|numbers| numbers.is_sorted()));
        control[0].extend(control[1].clone());
        control[0].sort_unstable();
        prop_assert_eq!(&control[0], &(0..model.pushed[1]).collect::<Vec<_>>());
        prop_assert!(model.outbox.chunk().is_empty());
    }
}

/// A long prompt is half written when the kill comes.
#[test]
fn a_control_message_comes_between_two_fragments() {
    let mut outbox = Outbox::default();
    let long = (false, 0, "x".repeat(10 * MAX_FRAME));
    let kill = (true, 0, String::new());
    outbox.push(&long).expect("encodable");
    let mut wire = outbox.chunk()[..MAX_FRAME + 100].to_vec();
    outbox.advance(wire.len());
    outbox.push_control(&kill).expect("encodable");
    while !outbox.is_empty() {
        let chunk = outbox.chunk().to_vec();
        outbox.advance(chunk.len());
        wire.extend(chunk);
    }
    let received: Vec<Message> = receive(&mut Inbox::default(), &wire, []).expect("valid frames");
    assert!(received == [kill, long]);
}
