//! A page of the documentation, as its blocks of code.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{matching, shape::shape};

/// A page.
#[derive(Clone, Debug)]
pub(crate) struct DocPage {
    /// Path in the repository.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) blocks: Vec<CodeBlock>,
}

/// A block of code.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodeBlock {
    /// Line of its fence; the first is 1.
    pub(crate) line: usize,
    language: String,
    /// Reason why it is not run.
    pub(crate) needs: Option<String>,
    lines: Vec<String>,
    /// Last line of the block.
    end: usize,
}

/// A command with the output that the page shows.
#[derive(Clone, Debug)]
pub(crate) struct ShownCommand {
    pub(crate) line: usize,
    pub(crate) text: String,
    output: Vec<String>,
    /// Output as JSON in a block of its own, with the line of its fence.
    json: Option<(usize, String)>,
}

impl CodeBlock {
    pub(crate) fn is_run(&self) -> bool {
        self.language == "console" && self.needs.is_none()
    }

    /// Lines that run curl, and are not run.
    pub(crate) fn idle_requests(&self) -> impl Iterator<Item = &str> {
        let lines = self.lines.iter().map(|line| line.trim_start_matches("$ ")).filter(|_| !self.is_run());
        lines.filter(|line| line.split_whitespace().next() == Some("curl"))
    }

    pub(crate) fn is_skipped(&self) -> bool {
        self.language == "console" && self.needs.is_some()
    }

    fn commands(&self) -> Vec<ShownCommand> {
        let mut commands: Vec<ShownCommand> = vec![];
        for (at, line) in self.lines.iter().enumerate() {
            if let Some(text) = line.strip_prefix("$ ") {
                let line = self.line + 1 + at;
                commands.push(ShownCommand { line, text: text.to_owned(), output: vec![], json: None });
                continue;
            }
            let Some(command) = commands.last_mut() else { continue };
            match line.strip_prefix("> ") {
                Some(more) if command.output.is_empty() => {
                    command.text.push('\n');
                    command.text.push_str(more);
                }
                _ => command.output.push(line.clone()),
            }
        }
        commands
    }
}

impl DocPage {
    fn read(root: &Path, path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("a page");
        let name = path.strip_prefix(root).expect("in the repository").display().to_string();
        Self { blocks: blocks(&text), name, text }
    }

    /// All commands that are run.
    pub(crate) fn commands(&self) -> impl Iterator<Item = ShownCommand> {
        self.blocks.iter().enumerate().filter(|(_, block)| block.is_run()).flat_map(|(at, block)| {
            let mut commands = block.commands();
            let next = self.blocks.get(at + 1).filter(|next| next.language == "json" && next.line <= block.end + 2);
            if let (Some(last), Some(next)) = (commands.last_mut(), next) {
                last.json = Some((next.line, next.lines.join("\n")));
            }
            commands
        })
    }
}

impl ShownCommand {
    /// Compares what the page shows with an output.
    ///
    /// # Errors
    /// The difference.
    pub(crate) fn judge(&self, output: &str) -> Result<(), String> {
        let Some((_, json)) = &self.json else {
            let same = matching::lines(&self.output, output);
            return if same { Ok(()) } else { Err(format!("the page shows:\n{}", self.output.join("\n"))) };
        };
        let shown: Value = serde_json::from_str(json).map_err(|error| format!("the page's JSON: {error}"))?;
        let printed: Value = serde_json::from_str(output).map_err(|error| format!("no JSON: {error}"))?;
        shape("", &shown, &printed)
    }

    /// Lines of the page that show the output, and what they are to be.
    pub(crate) fn update(&self, output: &str) -> (std::ops::Range<usize>, String) {
        match &self.json {
            Some((line, json)) => {
                let value =
                    serde_json::from_str::<Value>(output).and_then(|value| serde_json::to_string_pretty(&value));
                (*line..line + json.lines().count(), value.unwrap_or_else(|_| output.to_owned()) + "\n")
            }
            None => {
                let line = self.line + self.text.lines().count() - 1;
                (line..line + self.output.len(), output.to_owned())
            }
        }
    }
}

fn blocks(text: &str) -> Vec<CodeBlock> {
    let mut blocks: Vec<CodeBlock> = vec![];
    let mut open: Option<CodeBlock> = None;
    for (at, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(info), None) => {
                let mut words = info.split([' ', ',']);
                let language = words.next().unwrap_or_default().to_owned();
                let needs = words.find_map(|word| word.strip_prefix("needs=")).map(str::to_owned);
                open = Some(CodeBlock { line: at + 1, language, needs, ..CodeBlock::default() });
            }
            (Some(_), Some(block)) => blocks.push(CodeBlock { end: at + 1, ..block }),
            (None, Some(mut block)) => {
                block.lines.push(line.to_owned());
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    blocks
}

/// Root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// The pages: those of the book, and the ones at the root that lead to it.
pub(crate) fn all() -> Vec<DocPage> {
    let root = root();
    let mut paths = vec![root.join("README.md"), root.join("ARCHITECTURE.md"), root.join("CHANGELOG.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.iter().map(|path| DocPage::read(&root, path)).collect()
}
