//! Names in ARCHITECTURE.md are those of the source.
//!
//! Checked are the words in its charts and between backticks: a `Type::member` stands in one file with its type, a name with `_` or
//! with several humps stands somewhere, a path is there, and a name before `(file.rs)` stands in that file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::page;

/// Words of each source file, by its path in the repository.
type SourceWords = BTreeMap<String, BTreeSet<String>>;

/// Names of the kernel and of others, which are in no source file as one word.
const FOREIGN: [&str; 2] = ["CN_PROC", "close_range"];

/// Compares ARCHITECTURE.md with the source.
///
/// # Errors
/// The names that the source does not have, each with its line.
pub(crate) fn check() -> Result<(), String> {
    let mut sources = SourceWords::new();
    collect(&page::root(), &page::root(), &mut sources);
    let text = fs::read_to_string(page::root().join("ARCHITECTURE.md")).map_err(|error| error.to_string())?;
    let (mut is_chart, mut checked, mut wrong) = (false, 0, vec![]);
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_chart = !is_chart;
            continue;
        }
        let spans: Vec<&str> = if is_chart { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
        for span in spans {
            let names = names(span);
            checked += names.len();
            let unknown = names.into_iter().filter(|name| !is_known(name, &sources));
            wrong.extend(unknown.map(|name| format!("ARCHITECTURE.md:{}: {name}", at + 1)));
        }
        if is_chart {
            let misplaced = placed(line).into_iter().filter(|(name, file)| !stands_in(name, file, &sources));
            wrong.extend(misplaced.map(|(name, file)| format!("ARCHITECTURE.md:{}: {name} in {file}", at + 1)));
        }
    }
    match (wrong.is_empty(), checked) {
        (true, 300..) => Ok(()),
        (true, _) => Err(format!("only {checked} names were found: how is ARCHITECTURE.md written now?")),
        (false, _) => Err(format!("the source does not have these:\n{}", wrong.join("\n"))),
    }
}

/// Reads the words of all source files below a folder.
fn collect(root: &Path, folder: &Path, sources: &mut SourceWords) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !matches!(name.as_str(), "target" | "node_modules") {
                collect(root, &path, sources);
            }
        } else if name.ends_with(".rs") {
            let words = fs::read_to_string(&path).expect("a source file");
            let words = words.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect();
            sources.insert(path.strip_prefix(root).expect("below the root").display().to_string(), words);
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Names in a text that only code has: `Type::member`, `some_name`, `SomeName`, `some/file.rs`.
fn names(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !is_word(c) && !matches!(c, ':' | '/' | '.' | '-'));
    words.map(|word| word.trim_matches([':', '.', '-', '/'])).filter(|word| is_code(word)).collect()
}

fn is_code(word: &str) -> bool {
    if word.ends_with(".rs") {
        return true;
    }
    let has_humps = || word.chars().zip(word.chars().skip(1)).any(|(a, b)| a.is_lowercase() && b.is_uppercase());
    let is_path = word.contains(['/', '.', '-']);
    word.contains("::") || (!is_path && (word.trim_matches('_').contains('_') || has_humps()))
}

fn is_known(name: &str, sources: &SourceWords) -> bool {
    if name.ends_with(".rs") {
        return sources.keys().any(|path| is_at_end(name, path));
    }
    let parts: Vec<&str> = name.split("::").collect();
    FOREIGN.contains(&name) || sources.values().any(|words| parts.iter().all(|part| words.contains(*part)))
}

/// Returns true if the file of a path may be called `name` for short.
fn is_at_end(name: &str, path: &str) -> bool {
    path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// Names directly before the file in parentheses that they are said to be in.
fn placed(line: &str) -> Vec<(&str, &str)> {
    let mut found = vec![];
    let mut rest = line;
    while let Some(open) = rest.find('(') {
        let (before, after) = (&rest[..open], &rest[open + 1..]);
        let Some(close) = after.find(')') else { break };
        let file = &after[..close];
        if file.ends_with(".rs") && !file.contains(' ') {
            let last = before.trim_end().rsplit(|c: char| !is_word(c)).next().unwrap_or_default();
            found.extend((!last.is_empty()).then_some((last, file)));
        }
        rest = &after[close + 1..];
    }
    found
}

fn stands_in(name: &str, file: &str, sources: &SourceWords) -> bool {
    sources.iter().any(|(path, words)| is_at_end(file, path) && words.contains(name))
}
