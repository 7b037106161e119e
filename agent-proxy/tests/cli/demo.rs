//! The demo.

use ipc_protocol::{Receipt, ReceiptEntry};

use crate::harness::{Place, is_there};

#[test]
fn it_ends_with_an_empty_receipt_that_names_the_daemon() {
    let place = Place::new();
    let ran = place.run(&["demo"]).exits(0);
    let text = &ran.stdout;
    let (_, receipt) = text.split_once("\n5  ").expect("a fifth part");
    for part in ["a double-fork daemon", "a setsid child", "0 survivors", "SIGKILL", "ECHILD"] {
        assert!(receipt.contains(part), "{part} in {receipt}");
    }
    assert!(text.contains("4 of 4 left  2 of 4 left  0 of 4 left"), "{text}");
    assert!(!text.contains('\x1b'), "no colour in a pipe");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert_eq!(ran.stderr, "");
}

#[test]
fn in_json_the_figures_can_be_checked() {
    let place = Place::new();
    let shown = place.run(&["demo", "--json"]).exits(0).json();
    let receipt: Receipt = serde_json::from_value(shown["receipt"].clone()).expect("a receipt");
    assert!(receipt.is_empty());
    let left = shown["spared"]["groupKilled"].as_array().expect("pids");
    assert_eq!(left.len(), 2, "the setsid child and the daemon");
    let agent = &receipt.processes[0];
    let outside = |entry: &&ReceiptEntry| entry.pgid != agent.pgid;
    assert_eq!(receipt.processes.iter().filter(outside).count(), 2);
    assert!(receipt.processes.iter().all(|entry| !is_there(entry.id)));
}

#[test]
fn a_reader_that_leaves_leaves_nothing_behind() {
    let place = Place::new();
    let mut running = place.spawn(&["demo"]);
    running.line().expect("it began");
    running.close_stdout();
    running.end().exits(0);
}
