//! The documentation is right about the command line: tests of the pages against the tables and the parser.

use std::{fs, path::Path};

use clap::error::ErrorKind;

use proxy_server::{KINDS, exit};

use crate::args;

/// Pages of the documentation, with their paths.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = vec![root.join("README.md")];
    for entry in fs::read_dir(root.join("docs")).expect("the pages") {
        paths.push(entry.expect("a page").path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let read = |path: &Path| (path.display().to_string(), fs::read_to_string(path).expect("a page"));
    paths.iter().map(|path| read(path)).collect()
}

/// Command lines of `agent-proxy` in blocks of shell, and in words between backticks.
fn command_lines(page: &str) -> Vec<String> {
    let mut language = None;
    let mut lines = vec![];
    for line in page.lines() {
        match (line.strip_prefix("```"), language) {
            (Some(info), None) => language = Some(info.split([' ', ',']).next().unwrap_or_default()),
            (Some(_), Some(_)) => language = None,
            (None, Some("console")) => lines.extend(line.strip_prefix("$ ").into_iter().flat_map(commands)),
            (None, Some("sh")) => lines.extend(commands(line)),
            (None, Some(_)) => {}
            (None, None) => {
                let code = line.split('`').skip(1).step_by(2);
                lines.extend(code.filter(|code| code.starts_with("agent-proxy ")).map(str::to_owned));
            }
        }
    }
    lines
}

/// The commands in a line of shell, each with what follows it.
fn commands(line: &str) -> impl Iterator<Item = String> {
    let begins = line.match_indices("agent-proxy ").map(|(at, _)| at);
    let begins = begins.filter(|at| *at == 0 || line[..*at].trim_end().ends_with(['|', '(', ';', '&']));
    begins.map(|at| line[at..].to_owned())
}

/// The words of a command, up to where the shell begins with another.
fn words(line: &str) -> Vec<String> {
    let line = line.split_once(")\"").map_or(line, |(command, _)| command);
    let words = shlex::split(line).unwrap_or_default();
    let ends = |word: &String| {
        let word = word.trim_start_matches(|c: char| c.is_ascii_digit());
        matches!(word, "|" | "&" | "&&" | "||" | ";") || word.starts_with(['<', '>'])
    };
    let mut command: Vec<String> = words.into_iter().take_while(|word| !ends(word)).collect();
    if let Some(last) = command.last_mut() {
        *last = last.trim_end_matches([';', ')']).to_owned();
    }
    command
}

/// Part of the command line that is shown for its error.
const WRONG: &str = "'not an id'";

#[test]
fn every_command_that_is_shown_parses() {
    let mut wrong = String::new();
    for (page, text) in pages() {
        for line in command_lines(&text) {
            let words = words(&line);
            if words.iter().any(|word| word.contains('…') || word.chars().all(char::is_uppercase)) {
                continue;
            }
            match args::parse(&words) {
                // A command alone is a mention of it.
                Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {}
                Err(error) if error.use_stderr() && !line.contains(WRONG) => {
                    let error = error.to_string();
                    wrong.push_str(&format!("{page}: {line}\n  {}\n", error.lines().next().unwrap_or_default()));
                }
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_exit_codes_and_problems_are_all_there() {
    let (_, page) = pages().into_iter().find(|(path, _)| path.ends_with("exit-codes.md")).expect("the page");
    for (exit, meaning) in exit::TABLE {
        let row = format!("| {} | {meaning} |\n", exit.code());
        assert!(page.contains(&row), "{row}");
    }
    for (kind, title, status, exit) in KINDS {
        let row = format!("| `{kind}` | {title} | {status} | {} |\n", exit.code());
        assert!(page.contains(&row), "{row}");
    }
    assert_eq!(
        page.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() == 5).count(),
        KINDS.len() + 1,
        "one row each, and the head"
    );
}

#[test]
fn each_attack_of_the_threat_model_has_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/threat-model.md")).expect("the page");
    let (_, table) = page.split_once("## What is defended").expect("the section");
    let (table, _) = table.split_once("## What is not").expect("its end");
    let rows: Vec<&str> =
        table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| attack ")).collect();
    for row in &rows {
        let test = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let named =
            test.strip_prefix('`').and_then(|test| test.strip_suffix('`')).and_then(|test| test.split_once("`: `"));
        let (file, name) = named.unwrap_or_else(|| panic!("no test: {row}"));
        let source = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains(&format!("fn {name}(")), "{file} has no test {name}");
    }
    assert!(rows.len() >= 20, "{}", rows.len());
}
