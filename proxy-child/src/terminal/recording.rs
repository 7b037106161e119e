//! Recording of a terminal, as asciicast version 3: a viewer that writes to a file.
//!
//! It holds frames, not the program's bytes: nothing in it makes the terminal answer in which it is played. What is typed with
//! echo off is not on the screen, and so not in it.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ipc_protocol::{ExitStatus, terminal::TerminalSize};
use serde_json::json;

use super::{SharedTerminal, frame::FrameMaker};

/// Time between two frames.
const INTERVAL: Duration = Duration::from_millis(33);

pub(super) struct Recording {
    file: File,
    last: Instant,
    size: TerminalSize,
}

impl Recording {
    /// Creates the file, which must not exist: mode 0600.
    pub(super) fn create(path: &str, size: TerminalSize) -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let term = json!({ "cols": size.columns, "rows": size.rows, "type": "xterm-256color" });
        writeln!(file, "{}", json!({ "version": 3, "term": term, "timestamp": timestamp }))?;
        Ok(Self { file, last: Instant::now(), size })
    }

    /// Records until the terminal ends, or the file cannot be written.
    pub(super) async fn run(mut self, shared: SharedTerminal) {
        let mut changed = shared.changes();
        let mut frames = FrameMaker::new(self.size, true, &shared.lock().screen);
        loop {
            let (frame, size, ended) = {
                let terminal = shared.lock();
                let size = terminal.screen.size();
                frames.resize(size);
                (frames.frame(&terminal.screen), size, terminal.ended)
            };
            if size != self.size {
                self.size = size;
                if self.write("r", &format!("{}x{}", size.columns, size.rows)).is_err() {
                    return;
                }
            }
            if !frame.is_empty() && self.write("o", &String::from_utf8_lossy(&frame)).is_err() {
                return;
            }
            if let Some(exit) = ended {
                let code = match exit {
                    Some(ExitStatus::Code(code)) => code,
                    Some(ExitStatus::Signal(signal)) => 128 + signal,
                    None => 0,
                };
                let _ = self.write("x", &code.to_string());
                return;
            }
            tokio::time::sleep(INTERVAL).await;
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Writes an event. Its time is since the one before.
    fn write(&mut self, kind: &str, data: &str) -> io::Result<()> {
        let now = Instant::now();
        let since = now.duration_since(std::mem::replace(&mut self.last, now));
        let seconds = (since.as_secs_f64() * 1000.0).round() / 1000.0;
        writeln!(self.file, "{}", json!([seconds, kind, data]))
    }
}
