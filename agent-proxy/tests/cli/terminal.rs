//! A terminal of 80 columns and 24 lines: types keys, and looks at the screen, as a person does.

use std::{
    fs::File,
    io::{Read, Write},
    num::NonZero,
    os::fd::OwnedFd,
    process::Stdio,
    sync::mpsc,
    thread,
};

use nix::sys::termios::{Termios, tcgetattr};

use crate::harness::{DEADLINE, Place, Ran, Running, open_terminal};

/// Rows and columns.
const SIZE: (u16, u16) = (24, 80);

/// A program on a terminal of its own.
pub(crate) struct Terminal {
    keyboard: File,
    output: mpsc::Receiver<u8>,
    screen: vt100::Parser,
    running: Running,
    /// Number of times that the bell has rung.
    pub(crate) bells: usize,
    /// The program's side, for its settings.
    side: OwnedFd,
}

impl Terminal {
    /// Starts a program. Its standard streams are the terminal, which is its controlling one too.
    pub(crate) fn start(place: &Place, argv: &[&str], environment: &[(&str, &str)]) -> Self {
        let (controller, side) = open_terminal(SIZE);
        let mut command = place.command_as(&[&["setsid", "--ctty"], argv].concat());
        let end = || Stdio::from(side.try_clone().expect("another end"));
        command.stdin(end()).stdout(end()).stderr(end());
        command.env("TERM", "xterm").envs(environment.iter().copied());
        for name in ["COLUMNS", "LINES"] {
            command.env_remove(name);
        }
        let running = Running::new(command);
        let keyboard = File::from(controller);
        let (sender, output) = mpsc::channel();
        let mut reader = keyboard.try_clone().expect("another end");
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                if bytes[..read].iter().any(|byte| sender.send(*byte).is_err()) {
                    break;
                }
            }
        });
        let [rows, columns] = [SIZE.0, SIZE.1].map(|size| NonZero::new(size).expect("not 0"));
        let screen = vt100::Parser::new(rows, columns, 0);
        Self { keyboard, output, screen, running, bells: 0, side }
    }

    /// Types keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("it is there");
    }

    /// Pastes, as a terminal does for a program that asked to be told of pastes.
    pub(crate) fn paste(&mut self, text: &str) {
        assert!(self.screen.screen().bracketed_paste(), "a paste cannot be told from typing");
        self.press(&format!("\x1b[200~{}\x1b[201~", text.replace('\n', "\r")));
    }

    /// Returns what the screen shows, without blanks and empty lines at their ends.
    pub(crate) fn screen(&self) -> String {
        text(&self.screen)
    }

    /// Looks until the screen shows something, and returns all of it.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: &str) -> String {
        self.look(wanted, |screen| screen.contains(wanted))
    }

    /// Looks at what comes next.
    #[track_caller]
    pub(crate) fn see_more(&mut self) {
        let before = self.screen();
        self.look("something else", |screen| screen != before);
    }

    /// Looks until the last line of the screen is as wanted, and returns all of it.
    #[track_caller]
    pub(crate) fn until_last(&mut self, line: &str) -> String {
        self.look(&format!("last line {line:?}"), |screen| screen.lines().last() == Some(line))
    }

    /// Looks until so many lines begin with the prompt.
    #[track_caller]
    pub(crate) fn until_prompts(&mut self, prompt: &str, count: usize) {
        self.look(&format!("{count} prompts"), |screen| {
            screen.lines().filter(|line| line.starts_with(prompt)).count() >= count
        });
    }

    /// Looks until the screen shows this alone.
    #[track_caller]
    pub(crate) fn until_screen(&mut self, text: &str) {
        self.look(&format!("{text:?} alone"), |screen| screen == text);
    }

    #[track_caller]
    fn look(&mut self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        loop {
            let screen = self.screen();
            if is_there(&screen) {
                return screen;
            }
            match self.output.recv_timeout(DEADLINE) {
                Ok(byte) => {
                    self.bells += usize::from(byte == 0x07);
                    self.screen.process(&[byte]);
                }
                Err(error) => panic!("{error}: {what} did not come; the screen:\n{screen}"),
            }
        }
    }

    /// Waits for the program's end. Returns it, and the last screen.
    #[track_caller]
    pub(crate) fn end(self) -> (Ran, String) {
        let (ran, screen, _) = self.end_with_settings();
        (ran, screen)
    }

    /// Waits for the program's end. Returns it, the last screen, and the settings that it has left.
    #[track_caller]
    pub(crate) fn end_with_settings(self) -> (Ran, String, Termios) {
        let Self { keyboard: _keyboard, output, mut screen, running, side, .. } = self;
        let ran = running.end();
        let settings = tcgetattr(&side).expect("its settings");
        drop(side);
        // Ends when nobody has the program's side any more.
        loop {
            match output.recv_timeout(DEADLINE) {
                Ok(byte) => screen.process(&[byte]),
                Err(mpsc::RecvTimeoutError::Disconnected) => return (ran, text(&screen), settings),
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("somebody holds the terminal open: {}", text(&screen)),
            }
        }
    }
}

fn text(screen: &vt100::Parser) -> String {
    let lines: Vec<String> = screen.screen().rows(0, SIZE.1).map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n").trim_end().to_owned()
}
