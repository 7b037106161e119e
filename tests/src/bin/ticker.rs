//! Counts: `ticker PER_SECOND COUNT` prints `tick 0`, `tick 1`, … a line each, so many a second (0: as fast as they are read), and
//! then stays until its standard input ends.

use std::{
    io::{self, Read, Write},
    time::{Duration, Instant},
};

/// Lines are written every so often.
const BEAT: Duration = Duration::from_millis(5);

fn main() -> io::Result<()> {
    let number = |at| std::env::args().nth(at).and_then(|arg| arg.parse::<u64>().ok());
    let (Some(per_second), Some(count)) = (number(1), number(2)) else {
        return Err(io::Error::other("usage: ticker PER_SECOND COUNT"));
    };
    let mut out = io::stdout().lock();
    let (began, mut told) = (Instant::now(), 0);
    while told < count {
        let due = match per_second {
            0 => told + 512,
            rate => u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_mul(rate) / 1000,
        };
        let mut lines = String::new();
        for tick in told..due.min(count) {
            lines += &format!("tick {tick}\n");
        }
        told = told.max(due.min(count));
        out.write_all(lines.as_bytes())?;
        out.flush()?;
        if per_second > 0 {
            std::thread::sleep(BEAT);
        }
    }
    let mut rest = [0; 64];
    while io::stdin().read(&mut rest)? > 0 {}
    Ok(())
}
