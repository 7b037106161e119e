//! The least that can be between a host and an agent: `relay PROGRAM [ARGUMENT…]` passes on what goes in and what comes out, and
//! reads away the rest.

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    process::{Command, Stdio},
    thread,
};

#[expect(clippy::disallowed_methods, reason = "it is a bare one")]
fn main() -> io::Result<()> {
    let mut args = std::env::args_os().skip(1);
    let program = args.next().ok_or_else(|| io::Error::other("usage: relay PROGRAM [ARGUMENT…]"))?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let missing = || io::Error::other("a stream of the child is missing");
    let mut stdin = child.stdin.take().ok_or_else(missing)?;
    let mut stdout = child.stdout.take().ok_or_else(missing)?;
    let mut stderr = child.stderr.take().ok_or_else(missing)?;
    // Not the standard library's own, which gather lines.
    let mut from = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut to = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    thread::spawn(move || io::copy(&mut from, &mut stdin));
    thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
    io::copy(&mut stdout, &mut to)?;
    child.wait().map(drop)
}
