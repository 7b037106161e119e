//! A terminal window: types keys, looks at the screen, and can be resized and closed.

use std::{
    fs::File,
    io::{Read, Write},
    num::NonZero,
    os::fd::{AsFd, OwnedFd},
    process::Stdio,
    time::Instant,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::Signal,
        termios::{Termios, tcgetattr},
    },
};
use rustix::termios::tcsetwinsize;

use crate::harness::{DEADLINE, PROGRAM, Place, Ran, Running, gone, open_terminal, process};

/// Rows and columns of a window.
pub(crate) const SIZE: (u16, u16) = (24, 80);

/// Window with a program in it.
pub(crate) struct Window {
    /// `None` once it is closed.
    controller: Option<File>,
    /// Program's side, for its settings.
    side: OwnedFd,
    before: Termios,
    parser: vt100::Parser,
    /// Everything that was written.
    pub(crate) output: Vec<u8>,
    /// Bytes of the output that were looked at for queries.
    answered: usize,
    /// `None` once it was waited for.
    running: Option<Running>,
}

impl Window {
    /// Starts a program, with the window as its controlling terminal.
    pub(crate) fn start(place: &Place, (rows, columns): (u16, u16), argv: &[&str]) -> Self {
        Self::start_with(place, (rows, columns), argv, &[])
    }

    pub(crate) fn start_with(
        place: &Place,
        (rows, columns): (u16, u16),
        argv: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let (controller, side) = open_terminal((rows, columns));
        let before = tcgetattr(&side).expect("its settings");
        let mut command = place.command_as(&[&["setsid", "--ctty"], argv].concat());
        let end = || Stdio::from(side.try_clone().expect("another end"));
        command.stdin(end()).stdout(end()).stderr(end());
        command.env("TERM", "xterm-256color").envs(environment.iter().copied());
        for name in ["COLUMNS", "LINES"] {
            command.env_remove(name);
        }
        rustix::io::ioctl_fionbio(&controller, true).expect("set");
        let [rows, columns] = [rows, columns].map(|number| NonZero::new(number).expect("not 0"));
        Self {
            controller: Some(File::from(controller)),
            side,
            before,
            parser: vt100::Parser::new(rows, columns, 1000),
            output: Vec::new(),
            answered: 0,
            running: Some(Running::new(command)),
        }
    }

    /// Starts our program with these arguments.
    pub(crate) fn program(place: &Place, size: (u16, u16), args: &[&str]) -> Self {
        Self::start(place, size, &[&[PROGRAM], args].concat())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.as_ref().expect("it was not waited for").pid()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.running.as_ref().expect("it was not waited for").signal(signal);
    }

    /// Types keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.controller.as_mut().expect("open").write_all(keys.as_bytes()).expect("it takes a few");
    }

    pub(crate) fn resize(&mut self, rows: u16, columns: u16) {
        let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(self.controller.as_ref().expect("open"), size).expect("resized");
        let [rows, columns] = [rows, columns].map(|number| NonZero::new(number).expect("not 0"));
        self.parser.screen_mut().set_size(rows, columns);
    }

    /// Closes the window: the kernel hangs up.
    pub(crate) fn close(&mut self) {
        self.controller = None;
    }

    /// Scrolls back by so many lines.
    pub(crate) fn scroll_back(&mut self, lines: usize) {
        self.parser.screen_mut().set_scrollback(lines);
    }

    pub(crate) fn screen(&self) -> &vt100::Screen {
        self.parser.screen()
    }

    /// Returns the screen's text, without blanks and empty lines at the ends.
    pub(crate) fn text(&self) -> String {
        let (_, columns) = self.screen().size();
        let lines: Vec<String> = self.screen().rows(0, columns.get()).map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n").trim_end().to_owned()
    }

    /// Returns true if the settings are those from before the program.
    pub(crate) fn is_restored(&self) -> bool {
        tcgetattr(&self.side).expect("its settings") == self.before
    }

    /// Checks that nothing of what a program can turn on is on.
    #[track_caller]
    pub(crate) fn assert_reset(&self) {
        assert!(self.is_restored(), "{:#?}", tcgetattr(&self.side));
        let screen = self.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor(), "{}", self.text());
        assert!(!screen.bracketed_paste() && !screen.application_cursor() && !screen.application_keypad());
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None);
    }

    /// Looks until the screen shows a text. Returns all of it.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: &str) -> String {
        self.look(wanted, |text| text.contains(wanted))
    }

    /// Looks until the screen is as wanted. Returns all of it.
    #[track_caller]
    pub(crate) fn look(&mut self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let text = self.text();
            if is_there(&text) {
                return text;
            }
            let left = DEADLINE.saturating_sub(begin.elapsed());
            let controller = self.controller.as_ref().expect("open");
            let mut fds = [PollFd::new(controller.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut fds, PollTimeout::try_from(left).expect("it fits"));
            assert!(ready == Ok(1) && self.take_output(), "{what:?} did not come; the screen:\n{text}");
        }
    }

    /// Takes what is there; false at the end.
    fn take_output(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let Some(controller) = &mut self.controller else { return false };
        match controller.read(&mut chunk) {
            Ok(0) => return false,
            Ok(read) => {
                self.parser.process(&chunk[..read]);
                self.output.extend_from_slice(&chunk[..read]);
            }
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
        self.answer();
        true
    }

    /// Answers the query for the cursor's place, and that for the terminal's kind.
    fn answer(&mut self) {
        while let Some(at) = self.output[self.answered..].iter().position(|byte| *byte == 0x1b) {
            let from = self.answered + at;
            let rest = &self.output[from..];
            let answer = if rest.starts_with(b"\x1b[6n") {
                let (row, column) = self.screen().cursor_position();
                format!("\x1b[{};{}R", row + 1, column + 1)
            } else if rest.starts_with(b"\x1b[c") {
                "\x1b[?62;22c".to_owned()
            } else {
                // It may be cut.
                if rest.len() < 4 {
                    self.answered = from;
                    return;
                }
                String::new()
            };
            self.answered = from + 1;
            if !answer.is_empty() {
                self.press(&answer);
            }
        }
        self.answered = self.output.len();
    }

    /// Looks until the program has ended; it is not reaped.
    #[track_caller]
    fn wait(&mut self) {
        let held = registry::PidFd::open(process(self.pid())).expect("it is there");
        let begin = Instant::now();
        loop {
            let timeout = PollTimeout::try_from(DEADLINE.saturating_sub(begin.elapsed())).expect("it fits");
            let mut fds = vec![PollFd::new(held.as_fd(), PollFlags::POLLIN)];
            if let Some(controller) = &self.controller {
                fds.push(PollFd::new(controller.as_fd(), PollFlags::POLLIN));
            }
            let ready = poll(&mut fds, timeout).expect("polled");
            assert!(ready > 0, "it did not end; the screen:\n{}", self.text());
            let has_ended = fds[0].any() == Some(true);
            let has_output = fds.get(1).is_some_and(|fd| fd.any() == Some(true));
            if has_output {
                self.take_output();
            } else if has_ended {
                return;
            }
        }
    }

    /// Looks until the program has ended, with this code.
    #[track_caller]
    pub(crate) fn exits(&mut self, code: i32) {
        let ran = self.end();
        assert_eq!(ran.status.code(), Some(code), "{ran:?}; the screen:\n{}", self.text());
    }

    /// Waits until the program has ended, without taking what it writes.
    #[track_caller]
    pub(crate) fn end_unseen(&mut self) -> Ran {
        gone(process(self.pid()));
        self.running.take().expect("it was not waited for").end()
    }

    /// Looks until the program has ended.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Ran {
        self.wait();
        self.running.take().expect("it was not waited for").end()
    }
}
