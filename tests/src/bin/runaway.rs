//! Something that takes too much, within bounds of its own: `runaway KIND …` ends by itself within seconds, whatever else
//! happens.
//!
//! * `memory REPORT MIB`: touches 1 GiB a second, up to MIB; writes the MiB touched so far to the file REPORT
//! * `file PATH`: writes a MiB at a time, up to 64 MiB
//! * `forks DEPTH`: a tree of processes, 2^(DEPTH + 1) - 1 of them, each alive for some seconds
//! * `cpu`: burns one core
//! * `stop PID`: stops a process without a pause, as long as it is there
//! * `open-files`: opens files until it cannot, says how many, and keeps them

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Nothing here lives longer.
const LIFE: Duration = Duration::from_secs(5);
const MIB: usize = 1 << 20;
/// Most memory that is ever touched, in MiB.
const MAX_MEMORY: usize = 2048;
/// Of a tree of 127 processes.
const MAX_DEPTH: u32 = 6;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["memory", report, mib] => memory(report, mib.parse().unwrap_or(MAX_MEMORY)),
        ["file", path] => file(path),
        ["forks", depth] => forks(depth.parse().unwrap_or(0)),
        ["cpu"] => cpu(),
        ["stop", pid] => stop(pid.parse().unwrap_or(0)),
        ["open-files"] => open_files(),
        _ => return ExitCode::from(2),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn memory(report: &str, mib: usize) -> io::Result<()> {
    let report = File::create(report)?;
    let began = Instant::now();
    let mut blocks = Vec::new();
    for touched in 1..=mib.min(MAX_MEMORY) {
        // Not zeros: those are not touched.
        blocks.push(vec![1_u8; MIB]);
        report.write_all_at(format!("{touched:8}").as_bytes(), 0)?;
        let due = Duration::from_secs_f64(touched as f64 / 1024.0);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    rest(began);
    drop(blocks);
    Ok(())
}

fn file(path: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    for _ in 0..64 {
        file.write_all(&[b'x'; MIB])?;
    }
    rest(Instant::now());
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "this plays a program that starts others without asking anybody")]
fn forks(depth: u32) -> io::Result<()> {
    let began = Instant::now();
    if let Some(depth) = depth.min(MAX_DEPTH).checked_sub(1) {
        for _ in 0..2 {
            std::process::Command::new("/proc/self/exe").args(["forks", &depth.to_string()]).spawn()?;
        }
    }
    rest(began);
    Ok(())
}

fn cpu() -> io::Result<()> {
    let began = Instant::now();
    while began.elapsed() < LIFE {
        std::hint::spin_loop();
    }
    Ok(())
}

fn stop(pid: u32) -> io::Result<()> {
    let began = Instant::now();
    let process = registry::PidFd::open(registry::identify(pid)?)?;
    while began.elapsed() < LIFE && process.signal(ipc_protocol::Signal::Stop).is_ok() {}
    Ok(())
}

fn open_files() -> io::Result<()> {
    let mut files = Vec::new();
    let error = loop {
        match File::open("/dev/null") {
            Ok(file) if files.len() < 100_000 => files.push(file),
            Ok(_) => break io::Error::other("no limit"),
            Err(error) => break error,
        }
    };
    writeln!(io::stdout(), "opened {}, then: {error}", files.len())?;
    rest(Instant::now());
    Ok(())
}

fn rest(since: Instant) {
    std::thread::sleep(LIFE.saturating_sub(since.elapsed()));
}
