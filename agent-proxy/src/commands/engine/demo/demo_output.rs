//! Layout of the demo.

use crate::{
    command_failure::CommandFailure,
    term::{self, TermStyle, printable},
};

/// Columns of the demo, the same in a terminal and in a pipe.
const WIDTH: usize = 80;

/// Indentation of everything under a heading.
const INDENT: &str = "   ";

/// Columns besides the indentation.
pub(super) const ROOM: usize = WIDTH - INDENT.len();

/// Output of the demo; silent if only its result is requested.
#[derive(Debug)]
pub(super) struct DemoOutput {
    style: TermStyle,
    silent: bool,
}

impl DemoOutput {
    pub(super) fn new(silent: bool) -> Self {
        Self { style: TermStyle::stdout(), silent }
    }

    pub(super) fn style(&self) -> TermStyle {
        self.style
    }

    pub(super) fn title(&self, text: &str) -> Result<(), CommandFailure> {
        self.out(&format!("{}\n", self.style.bold(text)))
    }

    pub(super) fn heading(&self, number: u32, text: &str) -> Result<(), CommandFailure> {
        self.out(&format!("\n{}\n", self.style.bold(format_args!("{number}  {text}"))))
    }

    pub(super) fn paragraph(&self, text: &str) -> Result<(), CommandFailure> {
        self.out(&format!("{INDENT}{text}\n"))
    }

    pub(super) fn aside(&self, text: &str) -> Result<(), CommandFailure> {
        self.paragraph(&self.style.dim(text))
    }

    pub(super) fn verdict(&self, text: &str) -> Result<(), CommandFailure> {
        self.paragraph(&self.style.green(text))
    }

    /// Writes lines, indented.
    pub(super) fn block(&self, text: &str) -> Result<(), CommandFailure> {
        self.out(&text.lines().map(|line| format!("{INDENT}{line}\n")).collect::<String>())
    }

    /// Writes a piece of text that follows `before`, as it comes.
    pub(super) fn stream(&self, before: &str, piece: &str) -> Result<(), CommandFailure> {
        let mut text = String::new();
        let mut at_line_start = before.is_empty() || before.ends_with('\n');
        for line in printable(piece, true).split_inclusive('\n') {
            if at_line_start {
                text.push_str(INDENT);
            }
            text.push_str(line);
            at_line_start = line.ends_with('\n');
        }
        self.out(&text)
    }

    fn out(&self, text: &str) -> Result<(), CommandFailure> {
        if self.silent { Ok(()) } else { term::out(text) }
    }
}
