//! An agent that attacks: it reads lines `ATTACK TARGET` and answers each with lines `ATTEMPT: done` or `ATTEMPT: ERROR`,
//! and `end`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, IoSliceMut, Write},
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
};

use nix::{
    errno::Errno,
    sys::{
        ptrace,
        signal::{Signal, kill},
        uio::{RemoteIoVec, process_vm_readv},
    },
    unistd::Pid,
};
use registry::SpawnRequest;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

fn main() {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        attack(name, words.next().unwrap_or_default());
        say("end");
    }
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // Without a reader there is nobody left to tell.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn tell<T>(attempt: &str, result: Result<T, impl Into<io::Error>>) {
    let error = match result.map_err(Into::into) {
        Ok(_) => return say(&format!("{attempt}: done")),
        Err(error) => error,
    };
    let name =
        error.raw_os_error().map_or_else(|| error.to_string(), |number| format!("{:?}", Errno::from_raw(number)));
    say(&format!("{attempt}: {name}"));
}

fn attack(name: &str, target: &str) {
    let number: i32 = target.parse().unwrap_or(0);
    let pid = Pid::from_raw(number);
    match name {
        "signal" => {
            use Signal::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
            for signal in [None, Some(SIGCONT), Some(SIGTERM), Some(SIGSTOP), Some(SIGKILL)] {
                tell(&format!("signal {}", signal.map_or("0", Signal::as_str)), kill(pid, signal));
            }
        }
        "stop" => tell("stop", kill(pid, Signal::SIGSTOP)),
        // For as long as it is there.
        "keep-stopped" => while kill(pid, Signal::SIGSTOP).is_ok() {},
        "kill" => tell("kill", kill(pid, Signal::SIGKILL)),
        "kill-all" => tell("kill-all", kill(Pid::from_raw(-1), Signal::SIGKILL)),
        "ptrace" => {
            tell("ptrace attach", ptrace::attach(pid));
            tell("ptrace seize", ptrace::seize(pid, ptrace::Options::empty()));
        }
        "take" => take(number),
        "read" => read(pid),
        "write" => write(number),
        "own" => own(),
        "connect" => {
            let address = SocketAddr::from_abstract_name(target);
            tell("connect", address.and_then(|address| UnixStream::connect_addr(&address)));
        }
        "descriptors" => descriptors(),
        "pids" => pids(),
        _ => say("no such attack"),
    }
}

/// Takes descriptors out of another process.
fn take(number: i32) {
    let process = rustix::process::Pid::from_raw(number).ok_or(rustix::io::Errno::INVAL);
    let process = match process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Ok(process) => process,
        Err(error) => return tell("take", Err::<(), _>(error)),
    };
    for fd in 0..16 {
        match pidfd_getfd(process.as_fd(), fd, PidfdGetfdFlags::empty()) {
            // A number that is not open is no refusal.
            Err(rustix::io::Errno::BADF) => {}
            taken => tell("take", taken),
        }
    }
}

/// Reads what another process has.
fn read(pid: Pid) {
    for file in ["environ", "maps", "auxv"] {
        tell(&format!("read {file}"), fs::read(format!("/proc/{pid}/{file}")));
    }
    tell("read mem", File::open(format!("/proc/{pid}/mem")));
    tell("read fd", fs::read_link(format!("/proc/{pid}/fd/1")));
    tell("read cwd", fs::read_link(format!("/proc/{pid}/cwd")));
    // Nothing is mapped there: who may read is told so.
    let remote = [RemoteIoVec { base: 4096, len: 1 }];
    match process_vm_readv(pid, &mut [IoSliceMut::new(&mut [0])], &remote) {
        Err(Errno::EFAULT) => say("read memory: done"),
        read => tell("read memory", read),
    }
}

/// Writes to what another process has open.
fn write(number: i32) {
    for fd in 0..16 {
        let path = format!("/proc/{number}/fd/{fd}");
        tell("write", OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(b"nonsense")));
    }
}

/// What this process was given.
fn own() {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let fds: Vec<_> = open.map(|fd| (fd.file_name(), fd.path())).collect();
    for (number, path) in fds {
        // The descriptor by which they were read is closed.
        if let Ok(what) = fs::read_link(path) {
            say(&format!("descriptor {}: {}", number.display(), what.display()));
        }
    }
    for (name, _) in std::env::vars_os() {
        say(&format!("variable {}", name.display()));
    }
}

/// Opens as much as there is, and keeps it.
fn descriptors() {
    let mut held = Vec::new();
    let error = loop {
        match File::open("/dev/null") {
            Ok(file) => held.push(file),
            Err(error) => break error,
        }
    };
    tell(&format!("descriptors {}", held.len()), Err::<(), _>(error));
    std::mem::forget(held);
}

/// Takes every pid that is left; at most 100.
fn pids() {
    let sleep = || SpawnRequest { argv: vec!["sleep".into(), "1000".into()], ..SpawnRequest::new("/bin/sleep") };
    let mut started = 0;
    while started < 100 {
        if let Err(error) = registry::spawn(sleep()) {
            return say(&format!("pids {started}: {error}"));
        }
        started += 1;
    }
    say(&format!("pids {started}: there are more"));
}
