//! Matching of globs with command lines.

/// Longest command line that is analysed, in bytes. A rule that allows never matches a longer one; any other rule does.
const MAX_LINE: usize = 64 * 1024;
/// Words before a command that are not the command itself.
const BEFORE: [&str; 11] = ["!", "if", "then", "elif", "else", "while", "until", "do", "time", "command", "builtin"];
/// Programs that run another program, which follows after options and values of their own.
const RUNNERS: [&str; 25] = [
    "exec", "eval", "nohup", "env", "sudo", "doas", "xargs", "sh", "bash", "dash", "ash", "zsh", "ksh", "fish",
    "busybox", "timeout", "nice", "ionice", "chrt", "setsid", "stdbuf", "unshare", "chroot", "strace", "find",
];

/// Shells that take a script as an argument.
const SHELLS: [&str; 7] = ["ash", "bash", "dash", "fish", "ksh", "sh", "zsh"];

/// Glob for a complete command line: `*` matches anything, any other character itself.
#[derive(Debug)]
pub(super) struct CommandGlob {
    whole: Vec<char>,
    /// Glob without quotes, backslashes and repeated blanks.
    plain: Vec<char>,
    /// Same as `plain`, but with quoted characters that do not split commands.
    quoted: Vec<char>,
}

/// Character of a line, and its role in a match.
#[derive(Clone, Copy, Debug)]
struct MatchPosition {
    char: char,
    /// True if a match may start with it.
    begins: bool,
    /// True if a match may end with it.
    ends: bool,
    /// True if `*` may match it.
    star: bool,
}

impl CommandGlob {
    pub(super) fn new(glob: &str) -> Self {
        let glob = glob.trim_ascii();
        let [mut whole, mut plain, mut quoted] = [glob.chars().collect(), plain(glob), quoted(glob)];
        for glob in [&mut whole, &mut plain, &mut quoted] {
            glob.dedup_by(|a, b| *a == '*' && *b == '*');
        }
        Self { whole, plain, quoted }
    }

    /// Returns whether a rule that allows matches `line`. It has to match the complete line, and a character at which a shell would split
    /// the line (`;`, `&&`, `$(`, a newline, …) is matched only by the same character in the glob, never by `*`.
    pub(super) fn allows(&self, line: &str) -> bool {
        let line = line.trim_ascii();
        if line.len() > MAX_LINE {
            return false;
        }
        let chars: Vec<_> = line.chars().collect();
        let last = chars.len().saturating_sub(1);
        let place = |(at, char): (usize, &char)| MatchPosition {
            char: *char,
            begins: at == 0,
            ends: at == last,
            star: !takes_apart(*char),
        };
        finds(&self.whole, chars.iter().enumerate().map(place))
    }

    /// Returns whether a rule that does not allow matches `line`: the complete line, or one of the commands into which a shell would
    /// split it, with any spacing and quoting.
    pub(super) fn concerns(&self, line: &str) -> bool {
        let line = line.trim_ascii();
        line.len() > MAX_LINE
            || finds(&self.whole, places(&line.chars().collect::<Vec<_>>()))
            || finds(&self.plain, places(&plain(line)))
            || finds(&self.quoted, places(&quoted(line)))
    }
}

/// Returns whether a shell splits a line at `char`. (The parenthesis stands for `$(`.)
fn takes_apart(char: char) -> bool {
    matches!(char, ';' | '&' | '|' | '<' | '>' | '(' | ')' | '`') || (char.is_control() && char != '\t')
}

/// Returns whether commands may start after `char` and end before it.
fn divides(char: char) -> bool {
    takes_apart(char) || matches!(char, '{' | '}')
}

fn is_blank(char: char) -> bool {
    matches!(char, ' ' | '\t')
}

/// Returns `line` without quotes and backslashes, with one space for each run of blanks.
fn plain(line: &str) -> Vec<char> {
    let joined = line.replace("\\\n", "");
    let mut plain = Vec::new();
    for char in joined.chars().filter(|char| !matches!(char, '"' | '\'' | '\\')) {
        push(&mut plain, char);
    }
    plain
}

/// Does the same as [`plain`], but replaces quoted characters that would split the line by other characters.
fn quoted(line: &str) -> Vec<char> {
    let joined = line.replace("\\\n", "");
    let mut chars = joined.chars();
    let mut quote = None;
    let mut quoted = Vec::new();
    while let Some(char) = chars.next() {
        match (char, quote) {
            ('\\', None | Some('"')) => quoted.extend(chars.next().map(hidden)),
            (char, Some(end)) if char == end => quote = None,
            (char, Some(_)) => quoted.push(hidden(char)),
            ('"' | '\'', None) => quote = Some(char),
            (char, None) => push(&mut quoted, char),
        }
    }
    quoted
}

/// Returns the replacement for a quoted `char`.
fn hidden(char: char) -> char {
    const PRIVATE_USE: u32 = 0xe000;
    if is_blank(char) || divides(char) {
        char::from_u32(PRIVATE_USE + (u32::from(char) & 0xff)).unwrap_or(char)
    } else {
        char
    }
}

fn push(plain: &mut Vec<char>, char: char) {
    match char {
        blank if is_blank(blank) && plain.last() == Some(&' ') => {}
        blank if is_blank(blank) => plain.push(' '),
        char => plain.push(char),
    }
}

/// Marks the commands in the characters of a line. They start after a splitting character, after words that only lead to a command,
/// and after the directory of the program. They end before a splitting character. After a program that runs another one, each word
/// may be that program.
fn places(chars: &[char]) -> impl Iterator<Item = MatchPosition> {
    let mut begins = vec![false; chars.len()];
    let mut at = 0;
    // `first`: the next word is a command. `any`: any word may be one.
    let (mut first, mut any) = (true, false);
    // The word after `<` or `>` is a file, and the text after it continues the text before. (`>(` starts a command.)
    let mut redirected = false;
    while at < chars.len() {
        if matches!(chars[at], '<' | '>') {
            redirected = true;
            at += 1;
        } else if redirected && chars[at] == '&' {
            at += 1;
        } else if divides(chars[at]) {
            (first, any, redirected) = (true, false, false);
            at += 1;
        } else if is_blank(chars[at]) {
            at += 1;
        } else {
            let rest = &chars[at..];
            let len = rest.iter().position(|char| is_blank(*char) || divides(*char)).unwrap_or(rest.len());
            // Number of a descriptor: `2>file`.
            let is_number = rest[..len].iter().all(char::is_ascii_digit) && matches!(rest.get(len), Some('<' | '>'));
            if redirected {
                begins[at] = true;
                redirected = false;
            } else if (first || any) && !is_number {
                let word: String = rest[..len].iter().collect();
                begins[at] = true;
                if let Some(slash) = rest[..len].iter().rposition(|char| *char == '/').filter(|slash| slash + 1 < len) {
                    begins[at + slash + 1] = true;
                }
                let program = word.rsplit('/').next().unwrap_or(&word);
                any |= first && RUNNERS.contains(&program);
                first = first && (BEFORE.contains(&word.as_str()) || is_assignment(&word));
            }
            at += len;
        }
    }
    if let Some(begin) = begins.first_mut() {
        *begin = true;
    }
    let mut ends = vec![false; chars.len()];
    let mut end = true;
    for at in (0..chars.len()).rev() {
        let divides = divides(chars[at]) || (chars[at] == '$' && chars.get(at + 1) == Some(&'('));
        // A splitting character can end a match too: the glob may contain it.
        ends[at] = end || divides;
        end = divides || (end && is_blank(chars[at]));
    }
    chars
        .iter()
        .zip(begins)
        .zip(ends)
        .map(|((char, begins), ends)| MatchPosition { char: *char, begins, ends, star: true })
        .collect::<Vec<_>>()
        .into_iter()
}

/// Returns whether `word` is `NAME=value`.
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|char| char.is_alphanumeric() || matches!(char, '_' | '+'))
    })
}

/// Returns whether `glob` matches from a place where a match may start to a place where it may end. All matches are followed at
/// once, so the time is at most the product of both lengths.
fn finds(glob: &[char], places: impl Iterator<Item = MatchPosition>) -> bool {
    // Positions in the glob of the matches that are still possible, each once.
    let (mut now, mut next) = (Vec::new(), Vec::new());
    let mut seen = vec![usize::MAX; glob.len() + 1];
    let is_over = |at: &usize| glob[*at..].iter().all(|char| *char == '*');
    let mut is_empty = true;
    for (round, place) in places.enumerate() {
        is_empty = false;
        if place.begins {
            now.push(0);
        }
        let mut add = |at: usize| {
            if seen[at] != round {
                seen[at] = round;
                next.push(at);
            }
        };
        for at in now.drain(..) {
            // A star may also match nothing more.
            let literal = at + usize::from(glob.get(at) == Some(&'*'));
            if literal > at && place.star {
                add(at);
            }
            if glob.get(literal) == Some(&place.char) {
                add(literal + 1);
            }
        }
        if place.ends && next.iter().any(is_over) {
            return true;
        }
        std::mem::swap(&mut now, &mut next);
    }
    is_empty && is_over(&0)
}

/// Returns the script in `words`, if they only make a shell run it. A program in another place with the name of a shell does not
/// count, and only flags are accepted that do not change what is run.
pub(crate) fn script<'a>(words: &[&'a str]) -> Option<&'a str> {
    let [shell, flag, script] = words else { return None };
    let (directory, name) = shell.rsplit_once('/').unwrap_or(("", shell));
    let is_shell =
        SHELLS.contains(&name) && (!shell.contains('/') || ["/bin", "/usr/bin", "/usr/local/bin"].contains(&directory));
    let letters = flag.strip_prefix('-')?.strip_suffix('c')?;
    (is_shell && letters.chars().all(|letter| "eilux".contains(letter))).then_some(*script)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(glob: &str, line: &str) -> bool {
        CommandGlob::new(glob).allows(line)
    }

    fn concerns(glob: &str, line: &str) -> bool {
        CommandGlob::new(glob).concerns(line)
    }

    #[test]
    fn a_star_matches_anything_and_the_rest_itself() {
        assert!(allows("git *", "git log -p") && allows("git *", "  git log\n") && !allows("git *", "git"));
        assert!(allows("*", "") && allows("**", "x") && allows("a*b*c", "abbc") && !allows("a*b*c", "abcd"));
        assert!(allows("make", "make") && !allows("make", "makes") && !allows("make", "cmake"));
        assert!(allows("ls [a]?", "ls [a]?") && !allows("ls [a]?", "ls ab"), "there is nothing else than stars");
    }

    #[test]
    fn what_a_shell_takes_apart_is_not_allowed_by_a_star() {
        for more in [
            "; rm x", "&& rm x", "& rm x", "|| rm x", "| sh", "> /etc/x", "< x", "$(rm x)", "`rm x`", "<(rm x)",
            "\nrm x", "\rrm x", "\0", "\u{85}",
        ] {
            assert!(!allows("git *", &format!("git log {more}")), "{more:?}");
        }
        assert!(allows("cd * && make *", "cd a && make b") && !allows("cd * && make *", "cd a; x && make b"));
        assert!(!allows("cd * && make *", "cd a && make b && make c"));
        assert!(allows("* | head", "git log | head") && !allows("* | head", "git log | sh | head"));
        assert!(allows("f (*)", "f (x)") && !allows("f *(*)", "f $(x) (y)"));
    }

    #[test]
    fn a_command_is_found_wherever_a_shell_would_find_it() {
        for line in [
            "rm -rf x",
            "  rm   -rf  x ",
            "true; rm -rf x",
            "true&&rm -rf x",
            "(rm -rf x)",
            "echo $(rm -rf x)",
            "`rm -rf x`",
            "{ rm -rf x; }",
            "A=1 rm -rf x",
            "sudo -n rm -rf x",
            "/bin/rm -rf x",
            "'rm' -rf x",
            "A='b; c' 'rm' -rf x",
            "eval \"rm -rf x\"",
            "r\\m -rf \"x\"",
            "if true; then rm -rf x; fi",
            "true\nrm -rf x\ntrue",
            "find . | xargs -0 rm -rf x",
            "rm -rf x > log",
            "rm \\\n -rf x",
        ] {
            assert!(concerns("rm -rf *", line), "{line}");
            assert!(concerns("rm -rf x", line), "{line}");
        }
        for line in [
            "bash -c 'rm -rf x'",
            "sh -lc \"rm -rf x\"",
            "timeout 5 rm -rf x",
            "sudo -u root rm -rf x",
            "env -u A rm -rf x",
            "xargs -n 1 rm -rf x",
            "2>/dev/null rm -rf x",
            ">f rm -rf x",
            "/usr/bin/nice -n 5 /bin/rm -rf x",
        ] {
            assert!(concerns("rm -rf *", line), "{line}");
        }
        for line in ["git rm -rf x", "echo rm -rf x", "rm x", "charm -rf x"] {
            assert!(!concerns("rm -rf *", line), "{line}");
        }
        assert!(concerns("echo \"a;b\"", "echo \"a;b\"") && concerns("a; b", "x && a; b | c"));
    }

    #[test]
    fn only_a_shell_that_is_told_a_script_is_taken_off() {
        for (shell, flag) in [
            ("bash", "-c"),
            ("/bin/bash", "-lc"),
            ("/usr/bin/zsh", "-ilc"),
            ("/usr/local/bin/fish", "-c"),
            ("sh", "-euxc"),
        ] {
            assert_eq!(script(&[shell, flag, "git status"]), Some("git status"), "{shell} {flag}");
        }
        for (shell, flag) in [
            ("/tmp/evil/bash", "-lc"),
            ("./bash", "-c"),
            ("/bash", "-c"),
            ("/bin/../tmp/bash", "-c"),
            ("bin/sh", "-c"),
            ("bash", "--norc"),
            ("bash", "c"),
            ("bash", "--c"),
            // The text after these flags is no script.
            ("fish", "-Cc"),
            ("bash", "-oc"),
            ("python3", "-c"),
        ] {
            assert_eq!(script(&[shell, flag, "git status"]), None, "{shell} {flag}");
        }
        assert_eq!(script(&["bash", "-c", "git", "status"]), None);
    }

    #[test]
    fn a_line_too_long_to_look_into_is_not_allowed() {
        let line = "x".repeat(MAX_LINE + 1);
        assert!(!allows("*", &line) && concerns("rm", &line));
    }
}
