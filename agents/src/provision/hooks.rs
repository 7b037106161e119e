//! Hooks of ours in an agent's own screen: commands of a shell that report to the session's proxy, and ask it.
//!
//! A report is a line in a pipe of the session's folder. A hook that asks makes a pipe of its own beside it, named after the process
//! (`ask.PID`), and puts that number before the report. The proxy writes a byte, so that the hook knows it is there, then the answer, and
//! closes. So a hook waits no longer than the proxy lives. Nothing that fails here holds up the agent: without an answer a hook says
//! nothing, and the agent goes on as without it.

use std::path::Path;

use super::{Provision, ProvisionRequest};

/// Pipe for reports.
const REPORTS: &str = "reports";
/// Time for a report, in seconds.
pub(super) const REPORT_TIMEOUT: u64 = 5;
/// Time for an answer, in seconds: people take their time.
pub(super) const ASK_TIMEOUT: u64 = 7 * 24 * 3600;

/// Commands of the hooks.
pub(super) struct HookCommands {
    pub(super) report: String,
    pub(super) ask: String,
}

/// Returns the commands of the hooks if the agent is to have any, and has the proxy make the pipe.
pub(super) fn commands(request: &ProvisionRequest<'_>, provision: &mut Provision) -> Option<HookCommands> {
    let folder = request.shim_dir.filter(|_| super::has_hooks(request.config))?;
    provision.reports = Some(folder.join(REPORTS).to_string_lossy().into_owned());
    Some(HookCommands { report: report(folder), ask: ask(folder) })
}

/// Opens the pipe, if there is one. A shell ends with an error where a plain `exec` fails.
fn opened(folder: &Path) -> String {
    let folder = quoted(&folder.to_string_lossy());
    format!("d={folder}; [ -p \"$d/{REPORTS}\" ] && command exec 9<>\"$d/{REPORTS}\"")
}

fn report(folder: &Path) -> String {
    let opened = opened(folder);
    // A line begins with an end: the last hook may have been killed within its own.
    format!("{opened} && {{ flock 9; printf '\\n{{\"report\":'; tr '\\n' ' '; echo '}}'; }} >&9; exit 0")
}

fn ask(folder: &Path) -> String {
    let opened = opened(folder);
    [
        &opened,
        // A pipe that somebody has open for both can be opened, and written to, without waiting.
        "a=\"$d/ask.$$\" && rm -f \"$a\" && mkfifo -m 600 \"$a\" && command exec 8<>\"$a\"",
        "{ flock 9; printf '\\n{\"ask\":%s,\"report\":' $$; tr '\\n' ' '; echo '}'; } >&9",
        "command exec 9>&-",
        "timeout 10 head -c 1 <&8 >/dev/null",
        // From here on the proxy alone can write: its end is the end of the pipe.
        "command exec 7</dev/fd/8 8>&-",
        "exec cat <&7; exit 0",
    ]
    .join(" && ")
}

/// Quotes `text` as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::fs::OpenOptionsExt,
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// Runs a hook; its report is longer than a pipe holds.
    #[expect(clippy::disallowed_methods, reason = "as the agent starts it")]
    fn run(command: &str, report: &str) -> Child {
        let mut hook = Command::new("sh");
        let hook = hook.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut hook = hook.expect("a shell");
        let (mut stdin, report) = (hook.stdin.take().expect("a pipe"), report.to_owned());
        std::thread::spawn(move || stdin.write_all(report.as_bytes()));
        hook
    }

    fn said(hook: Child) -> String {
        let output = hook.wait_with_output().expect("waited");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Makes the pipe for reports, as the proxy does.
    fn pipe(folder: &Path) -> std::fs::File {
        let path = folder.join(REPORTS);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        std::fs::OpenOptions::new().read(true).write(true).open(path).expect("opened")
    }

    /// Reads until the text ends as a report does.
    fn report_of(reports: &mut std::fs::File) -> String {
        let (mut text, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
        while !text.ends_with(b"}\n") {
            let read = reports.read(&mut chunk).expect("read");
            text.extend_from_slice(&chunk[..read]);
        }
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn a_hook_reports_asks_and_never_waits_for_nobody() {
        let place = tempfile::Builder::new().prefix("it's here ").tempdir().expect("a directory");
        let long = format!("{{\"a\":\n\"{}\"}}\n", "x".repeat(300_000));
        // Without a proxy.
        for command in [report(place.path()), ask(place.path())] {
            assert_eq!(said(run(&command, "{}")), "");
        }
        let mut reports = pipe(place.path());
        let hook = run(&report(place.path()), &long);
        let line = report_of(&mut reports);
        assert!(line.starts_with("\n{\"report\":{\"a\": \"xxx") && line.ends_with("xxx\"} }\n"), "{}", line.len());
        assert_eq!(said(hook), "");
        for answer in ["{\"yes\":1}", ""] {
            let hook = run(&ask(place.path()), &long);
            let line = report_of(&mut reports);
            assert!(line.starts_with(&format!("\n{{\"ask\":{},\"report\":{{", hook.id())), "{}", &line[..60]);
            let path = place.path().join(format!("ask.{}", hook.id()));
            let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a flag");
            let mut pipe =
                std::fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(&path).expect("it waits");
            std::fs::remove_file(path).expect("removed");
            pipe.write_all(format!("\n{answer}").as_bytes()).expect("written");
            drop(pipe);
            assert_eq!(said(hook), answer);
        }
        assert_eq!(std::fs::read_dir(place.path()).expect("listed").count(), 1, "the pipe of the reports alone");
    }
}
