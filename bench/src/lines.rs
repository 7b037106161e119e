//! Agent of the event benches: writes numbered lines, as fast as they are read.

use std::{
    io::{self, BufRead, Write},
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    text::{LEN, NumberedTexts},
};

/// Reads counts, one a line, and writes that many lines of `len` bytes for each, numbered from 0. Ends with its input.
///
/// # Errors
/// When the input is no number, or the output is closed.
pub(crate) fn serve(len: usize) -> Result<()> {
    answer(|out, count| {
        let mut lines = NumberedTexts::lines(len);
        while lines.taken() < count {
            lines.take(|line| out.write_all(line))?;
        }
        out.flush()
    })
}

/// Writes like [`serve`], with lines of [`LEN`] bytes: `at_once` of them in every `interval`. Catches up after a
/// delay.
///
/// # Errors
/// Same as [`serve`].
pub(crate) fn serve_paced(at_once: u64, interval: Duration) -> Result<()> {
    answer(|out, count| {
        let mut lines = NumberedTexts::lines(LEN);
        let mut next = Instant::now();
        while lines.taken() < count {
            for _ in lines.taken()..count.min(lines.taken() + at_once) {
                lines.take(|line| out.write_all(line))?;
            }
            out.flush()?;
            next += interval;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    })
}

/// Passes each count of the input to `write`.
fn answer(mut write: impl FnMut(&mut dyn Write, u64) -> io::Result<()>) -> Result<()> {
    let mut out = io::BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let line = line.map_err(Error::system("reading a count"))?;
        let count: u64 = line
            .trim()
            .parse()
            .map_err(|_| Error::answer("the input", format!("says {line:?}: no number of lines")))?;
        write(&mut out, count).map_err(Error::system("writing lines"))?;
    }
    Ok(())
}
