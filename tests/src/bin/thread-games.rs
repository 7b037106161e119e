//! Does with threads what a process observer has to get right.
//!
//! * `storm N`: starts N threads one after the other, each of which ends at once.
//! * `exec CODE`: its second thread executes a shell that exits with CODE.

use std::{ffi::CString, thread};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, game, number] = args.as_slice() else { panic!("usage: thread-games storm|exec NUMBER") };
    match game.as_str() {
        "storm" => {
            for _ in 0..number.parse::<u32>().expect("a number") {
                thread::spawn(|| ()).join().expect("no panic");
            }
        }
        "exec" => {
            let shell = format!("exit {number}");
            let line = [c"sh".to_owned(), c"-c".to_owned(), CString::new(shell).expect("no NUL")];
            let executed = thread::spawn(move || nix::unistd::execv(c"/bin/sh", &line)).join().expect("no panic");
            panic!("not executed: {executed:?}");
        }
        other => panic!("unknown game {other:?}"),
    }
}
