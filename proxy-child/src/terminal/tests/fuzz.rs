//! Fuzz of the screen model: recorded and random output, cut, mixed and resized at random, for as long as
//! `AGENT_PROXY_TERMINAL_FUZZ` says, in seconds.

use std::time::{Duration, Instant};

use ipc_protocol::terminal::TerminalSize;
use peak_alloc::PeakAlloc;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::{ViewerTerminal, end_update, piece, screen, size};
use crate::terminal::{frame::FrameMaker, screen::Screen};

/// Seconds of the fuzz in each run of the tests.
const SECONDS: u64 = 2;
/// Memory that a screen of the largest size may hold, with the other screen, scrollback, and as many characters in each cell as there
/// may be, in MiB.
const MODEL_MIB: usize = 384;
/// Memory that making such a screen narrower may take meanwhile, in MiB.
const RESIZE_MIB: usize = 512;
/// Memory that may be in use when all screens are gone, beyond what was before, in KiB: what was printed, and such.
const LEFT_KIB: usize = 1024;

/// Counts what is allocated. Other tests of this process allocate, too, unless this one runs alone.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Output of programs and agents.
const RECORDED: [&[u8]; 8] = [
    include_bytes!("recorded/claude"),
    include_bytes!("recorded/codex"),
    include_bytes!("recorded/gemini"),
    include_bytes!("recorded/less"),
    include_bytes!("recorded/opencode"),
    include_bytes!("recorded/pi"),
    include_bytes!("recorded/tmux"),
    include_bytes!("recorded/vim"),
];

fn sizes() -> impl Strategy<Value = TerminalSize> {
    prop_oneof![
        40 => (1..60_u16, 2..140_u16).prop_map(|(rows, columns)| size(rows, columns)),
        1 => Just(size(TerminalSize::MAX_ROWS, TerminalSize::MAX_COLUMNS)),
        1 => Just(size(1, 2)),
    ]
}

/// Output of one turn.
fn output() -> impl Strategy<Value = Vec<u8>> {
    let recorded = || {
        (0..RECORDED.len(), any::<usize>(), 1..8192_usize).prop_map(|(which, from, most)| {
            let all = RECORDED[which];
            let from = from % all.len();
            all[from..all.len().min(from + most)].to_vec()
        })
    };
    let damaged = (recorded(), proptest::collection::vec((any::<usize>(), any::<u8>()), 1..20)).prop_map(
        |(mut bytes, changes)| {
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes
        },
    );
    let flood = (piece(), 1..3000_usize).prop_map(|(piece, times)| piece.repeat(times));
    prop_oneof![
        4 => recorded(),
        4 => damaged,
        4 => proptest::collection::vec(piece(), 0..200).prop_map(|pieces| pieces.concat()),
        2 => proptest::collection::vec(any::<u8>(), 0..4096),
        1 => flood,
    ]
}

/// Gives values, without a record that could be made smaller.
struct Values(TestRunner);

impl Values {
    fn next<T: std::fmt::Debug>(&mut self, strategy: &impl Strategy<Value = T>) -> T {
        strategy.new_tree(&mut self.0).expect("nothing is rejected").current()
    }
}

#[test]
fn the_model_takes_anything() {
    let seconds = std::env::var("AGENT_PROXY_TERMINAL_FUZZ").ok().map(|text| text.parse().expect("seconds"));
    let seed = std::env::var("AGENT_PROXY_TERMINAL_SEED").ok().map(|text| text.parse::<u64>().expect("a number"));
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = seed.unwrap_or(clock.as_secs());
    println!("terminal fuzz: seed {seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut values = Values(TestRunner::new_with_rng(Config::default(), rng));

    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
    let before = HEAP.current_usage();
    let (mut screens, mut turns, mut fed, mut painted) = (0, 0, 0_u64, 0_u64);
    let (mut largest, mut resized, mut left) = (0, 0, 0);
    let mut slowest = Duration::ZERO;
    while Instant::now() < until {
        let first = values.next(&sizes());
        let mut screen: Screen = screen(first.rows, first.columns);
        let mut viewers: Vec<_> = (0..2)
            .map(|_| {
                let viewer = ViewerTerminal::new(values.next(&sizes()));
                let frames = FrameMaker::new(viewer.size, false, &screen);
                (viewer, frames)
            })
            .collect();
        screens += 1;
        for _ in 0..60 {
            let output = values.next(&output());
            let begin = Instant::now();
            screen.feed(&output);
            end_update(&mut screen);
            slowest = slowest.max(begin.elapsed());
            screen.take_effects();
            fed += output.len() as u64;
            turns += 1;
            match values.next(&(0..12_u8)) {
                0 => {
                    let size = values.next(&sizes());
                    HEAP.reset_peak_usage();
                    let before = HEAP.current_usage();
                    screen.resize(size);
                    resized = resized.max(HEAP.peak_usage().saturating_sub(before));
                }
                1 => {
                    let (viewer, frames) = &mut viewers[turns % 2];
                    let size = values.next(&sizes());
                    viewer.resize(size);
                    frames.resize(size);
                }
                2..4 => {
                    let (viewer, frames) = &mut viewers[turns % 2];
                    let frame = frames.frame(&screen);
                    painted += frame.len() as u64;
                    viewer.show(&frame);
                    viewer.compare(&screen, 0);
                }
                _ => {}
            }
            if Instant::now() >= until {
                break;
            }
        }
        drop(viewers);
        let with_model = HEAP.current_usage();
        drop(screen);
        let without = HEAP.current_usage();
        largest = largest.max(with_model.saturating_sub(without));
        left = left.max(without.saturating_sub(before));
    }
    let (largest, resized, left) = (largest >> 20, resized >> 20, left >> 10);
    println!(
        "terminal fuzz: {screens} screens, {turns} turns, {} KiB fed, {} KiB of frames, slowest turn {slowest:?}, \
         largest screen {largest} MiB, {resized} MiB to resize it, {left} KiB left of all",
        fed / 1024,
        painted / 1024,
    );
    if seconds.is_some() {
        assert!(largest <= MODEL_MIB, "a screen of {largest} MiB");
        assert!(resized <= RESIZE_MIB, "{resized} MiB to resize a screen");
        assert!(left <= LEFT_KIB, "{left} KiB are left");
    }
}
