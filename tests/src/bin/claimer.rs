//! Wants to be the host of a fork server: `claimer DIR` says so at each socket in DIR, prints the answers, a line each, and
//! stays until its standard input ends.

use std::io::{self, Read, Write};

fn main() -> io::Result<()> {
    let directory = std::env::args().nth(1).ok_or_else(|| io::Error::other("usage: claimer DIR"))?;
    for (verdict, _control) in agent_proxy_tests::detach::claim_all(directory.as_ref(), ipc_protocol::message::VERSION)
    {
        writeln!(io::stdout(), "{}", serde_json::to_string(&verdict)?)?;
    }
    let mut rest = [0; 64];
    while io::stdin().read(&mut rest)? > 0 {}
    Ok(())
}
