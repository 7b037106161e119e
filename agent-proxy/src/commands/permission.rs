//! Permission requests, put to whoever sits at the terminal.

use std::{
    collections::VecDeque,
    io::{self, BufRead, IsTerminal},
};

use proxy_manager::{PermissionAnswer, PermissionOption, PermissionOptionKind, PermissionRequest};
use tokio::sync::mpsc;

use crate::term::{self, Style, printable};

/// Asks one request after the other.
#[derive(Debug)]
pub(super) struct Asker {
    open: VecDeque<PermissionRequest>,
    /// Lines typed; `None` until the first request, and where nobody can be asked.
    lines: Option<mpsc::Receiver<String>>,
}

impl Asker {
    /// Nothing is read before the first request.
    pub(super) fn new() -> Self {
        Self { open: VecDeque::new(), lines: None }
    }

    /// Puts a request to the user; `Some` where nobody can be asked.
    pub(super) fn ask(&mut self, request: &PermissionRequest) -> Option<PermissionAnswer> {
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            term::note("? denied: standard input is no terminal, so nobody can be asked; see --permission");
            return Some(PermissionAnswer::Deny);
        }
        self.lines.get_or_insert_with(read_lines);
        self.open.push_back(request.clone());
        if self.open.len() == 1 {
            show(request);
        }
        None
    }

    /// A request was answered otherwise, or its turn is over.
    pub(super) fn forget(&mut self, id: &str) {
        self.open.retain(|request| request.id != id);
    }

    /// The next answer typed. Pends for ever while nothing is open. May be dropped while it waits.
    pub(super) async fn answer(&mut self) -> (String, PermissionAnswer) {
        loop {
            let (Some(request), Some(lines)) = (self.open.front(), self.lines.as_mut()) else {
                return std::future::pending().await;
            };
            // Ctrl-D: no answer will come.
            let line = lines.recv().await.unwrap_or_else(|| "n".to_owned());
            let Some(answer) = parse(line.trim(), &request.options) else {
                show(request);
                continue;
            };
            let id = request.id.clone();
            self.open.pop_front();
            self.open.front().inspect(|next| show(next));
            return (id, answer);
        }
    }
}

fn show(request: &PermissionRequest) {
    let style = Style::stderr();
    term::note(format_args!("{} {}", style.bold("May it?"), printable(&request.title, false)));
    for (at, option) in request.options.iter().enumerate() {
        term::note(format_args!("  {}  {}", at + 1, printable(&option.name, false)));
    }
    term::part("  y = allow once, n = deny, or a number: ");
}

fn parse(line: &str, options: &[PermissionOption]) -> Option<PermissionAnswer> {
    let has = |kinds: [PermissionOptionKind; 2]| options.iter().any(|option| kinds.contains(&option.kind));
    match line.to_ascii_lowercase().as_str() {
        "y" | "yes" if has([PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways]) => {
            Some(PermissionAnswer::Allow)
        }
        "n" | "no" if has([PermissionOptionKind::RejectOnce, PermissionOptionKind::RejectAlways]) => {
            Some(PermissionAnswer::Deny)
        }
        // Without a way to say no, no answer is one.
        "n" | "no" => Some(PermissionAnswer::Cancelled),
        number => {
            let option = options.get(number.parse::<usize>().ok()?.checked_sub(1)?)?;
            Some(PermissionAnswer::Option(option.id.clone()))
        }
    }
}

/// Lines of standard input, from a thread: reading a terminal blocks.
fn read_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let option = |id: &str, kind| PermissionOption { id: id.into(), name: id.into(), kind };
        let options = [option("once", PermissionOptionKind::AllowOnce), option("no", PermissionOptionKind::RejectOnce)];
        assert_eq!(parse("y", &options), Some(PermissionAnswer::Allow));
        assert_eq!(parse("NO", &options), Some(PermissionAnswer::Deny));
        assert_eq!(parse("2", &options), Some(PermissionAnswer::Option("no".into())));
        for bad in ["", "0", "3", "maybe"] {
            assert_eq!(parse(bad, &options), None, "{bad:?}");
        }
        assert_eq!(parse("n", &options[..1]), Some(PermissionAnswer::Cancelled));
    }
}
