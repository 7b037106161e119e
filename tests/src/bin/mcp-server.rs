//! The MCP server of `agent_proxy_tests::orchard`, by lines, until its standard input closes. What it is asked for is also written
//! to the file that its argument names.

use std::{
    fs::File,
    io::{self, BufRead, Write},
};

use agent_proxy_tests::orchard;

fn main() -> io::Result<()> {
    let path = std::env::args_os().nth(1).ok_or(io::ErrorKind::InvalidInput)?;
    let mut came = File::options().create(true).append(true).open(path)?;
    for line in io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str(&line?) else { continue };
        writeln!(came, "{message}")?;
        if let Some(answer) = orchard::answer(&message) {
            writeln!(io::stdout(), "{answer}")?;
        }
    }
    Ok(())
}
