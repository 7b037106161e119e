//! Window of tmux: types keys, looks at what it shows.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread::sleep,
    time::{Duration, Instant},
};

/// Longest wait for a text.
const TEXT_TIMEOUT: Duration = Duration::from_secs(180);
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Looks in a row that show the same, of a screen that has come to rest.
const RESTING_LOOKS: usize = 16;

/// What a window shows, as tmux tells it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CapturedScreen {
    /// Lines without blanks at their ends.
    pub(crate) text: Vec<String>,
    /// The same with sequences for colours and attributes.
    pub(crate) colored: Vec<String>,
    pub(crate) width: usize,
    /// Column and row.
    pub(crate) cursor: (usize, usize),
    pub(crate) modes: String,
    pub(crate) title: String,
}

/// What a window shows, to be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shot {
    /// Lines of ours that were left out.
    pub(crate) receipts: usize,
    pub(crate) text: Vec<String>,
    /// Text with colours and attributes.
    pub(crate) colors: Vec<String>,
    /// Cursor and modes.
    pub(crate) modes: String,
    /// `None` where it is not known.
    pub(crate) title: Option<String>,
}

/// Cursor and modes, as tmux names them.
const MODES: &str = "#{pane_width};#{cursor_x};#{cursor_y};visible #{cursor_flag} alternate #{alternate_on} mouse \
                     #{mouse_standard_flag}#{mouse_button_flag}#{mouse_all_flag}#{mouse_sgr_flag} keypad #{keypad_flag}\
                     #{keypad_cursor_flag};#{pane_title}";

/// Server of tmux with one window, in which a shell runs.
#[derive(Debug)]
pub(crate) struct TmuxPane {
    socket: PathBuf,
}

impl TmuxPane {
    /// Opens a window of this size with a shell in `work`.
    pub(crate) fn open(
        socket: &Path,
        (columns, rows): (u16, u16),
        work: &Path,
        environment: &[(&str, String)],
    ) -> io::Result<Self> {
        let pane = Self { socket: socket.to_owned() };
        let [columns, rows] = [columns, rows].map(|number| number.to_string());
        let mut words = vec!["new-session", "-d", "-s", "a", "-x", &columns, "-y", &rows, "-c"];
        let work = work.to_string_lossy();
        let environment: Vec<String> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        words.extend([&*work, "env", "-i"]);
        words.extend(environment.iter().map(String::as_str));
        words.extend(["bash", "--norc", "--noprofile"]);
        pane.tmux(&words)?;
        pane.until("$")?;
        Ok(pane)
    }

    #[expect(clippy::disallowed_methods, reason = "tmux is the window, and no session")]
    fn tmux(&self, words: &[&str]) -> io::Result<Output> {
        let output = Command::new("tmux").arg("-S").arg(&self.socket).args(["-f", "/dev/null"]).args(words).output()?;
        if output.status.success() {
            return Ok(output);
        }
        Err(io::Error::other(format!("tmux {words:?}: {}", String::from_utf8_lossy(&output.stderr))))
    }

    /// Types a text.
    pub(crate) fn write(&self, text: &str) -> io::Result<()> {
        self.tmux(&["send-keys", "-t", "a:", "-l", text]).map(drop)
    }

    /// Presses keys, by tmux's names.
    pub(crate) fn press(&self, keys: &[&str]) -> io::Result<()> {
        self.tmux(&[&["send-keys", "-t", "a:"], keys].concat()).map(drop)
    }

    pub(crate) fn resize(&self, (columns, rows): (u16, u16)) -> io::Result<()> {
        self.tmux(&["resize-window", "-t", "a:", "-x", &columns.to_string(), "-y", &rows.to_string()]).map(drop)
    }

    /// Looks at the window.
    pub(crate) fn capture(&self) -> io::Result<CapturedScreen> {
        let lines = |flags: &[&str]| {
            let output = self.tmux(&[&["capture-pane", "-p", "-t", "a:"], flags].concat())?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok::<_, io::Error>(text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>())
        };
        let modes = self.tmux(&["display-message", "-p", "-t", "a:", MODES])?;
        let modes = String::from_utf8_lossy(&modes.stdout).trim_end().to_owned();
        let mut parts = modes.splitn(5, ';');
        let mut part = || parts.next().unwrap_or_default();
        let width = part().parse().unwrap_or(0);
        let cursor = (part().parse().unwrap_or(0), part().parse().unwrap_or(0));
        let (modes, title) = (part().to_owned(), part().to_owned());
        Ok(CapturedScreen { text: lines(&[])?, colored: lines(&["-e"])?, width, cursor, modes, title })
    }

    /// Looks until a text stands there.
    pub(crate) fn until(&self, text: &str) -> io::Result<CapturedScreen> {
        self.look(text, TEXT_TIMEOUT, |screen| screen.text.iter().any(|line| line.contains(text)))
    }

    /// Looks until the window is as wanted.
    pub(crate) fn look(
        &self,
        what: &str,
        timeout: Duration,
        mut is_there: impl FnMut(&CapturedScreen) -> bool,
    ) -> io::Result<CapturedScreen> {
        let begin = Instant::now();
        loop {
            let screen = self.capture()?;
            if is_there(&screen) {
                return Ok(screen);
            }
            if begin.elapsed() > timeout {
                return Err(io::Error::other(format!("no {what:?} within {timeout:?}:\n{}", screen.text.join("\n"))));
            }
            sleep(LOOK_INTERVAL);
        }
    }

    /// Looks until nothing changes any more.
    pub(crate) fn rest(&self, normal: impl Fn(CapturedScreen) -> Shot) -> io::Result<Shot> {
        let mut last = Shot::default();
        let mut same = 0;
        self.look("rest", TEXT_TIMEOUT, |screen| {
            let shot = normal(screen.clone());
            same = if shot == last { same + 1 } else { 0 };
            last = shot;
            same >= RESTING_LOOKS
        })?;
        Ok(last)
    }

    /// Returns the settings of the window's terminal, as the shell in it reads them.
    pub(crate) fn settings(&self, folder: &Path) -> io::Result<String> {
        let file = folder.join("settings");
        let _ = fs::remove_file(&file);
        self.write(&format!("stty -g >{0}.new; mv {0}.new {0}", file.display()))?;
        self.press(&["Enter"])?;
        self.look("settings", TEXT_TIMEOUT, |_| file.exists())?;
        fs::read_to_string(&file)
    }

    /// Returns the process in the window.
    pub(crate) fn pid(&self) -> io::Result<u32> {
        let output = self.tmux(&["display-message", "-p", "-t", "a:", "#{pane_pid}"])?;
        String::from_utf8_lossy(&output.stdout).trim().parse().map_err(io::Error::other)
    }
}

impl Drop for TmuxPane {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}
