//! The agent of the event benches: writes numbered lines, as fast as they are taken.

use std::io::{self, BufRead, Write};

use crate::{
    error::{Error, Result},
    text::Texts,
};

/// Reads counts, one a line, and writes that many lines of `len` bytes for each, numbered from 0. Ends with its input.
///
/// # Errors
/// When the input is no number, or the output is closed.
pub(crate) fn serve(len: usize) -> Result<()> {
    let mut out = io::BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let line = line.map_err(Error::system("reading a count"))?;
        let count: u64 = line
            .trim()
            .parse()
            .map_err(|_| Error::answer("the input", format!("says {line:?}: no number of lines")))?;
        let mut lines = Texts::lines(len);
        while lines.taken() < count {
            lines.take(|line| out.write_all(line)).map_err(Error::system("writing a line"))?;
        }
        out.flush().map_err(Error::system("writing lines"))?;
    }
    Ok(())
}
