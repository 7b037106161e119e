//! The pages of the documentation do what they say.
//!
//! Every page of `docs/` and the README is one test: its `console` blocks run in one shell, with a home of their own, and print what
//! the page shows. Agents are fake: `my-agent` is an ACP agent that does what the prompt says. How a page is written:
//!
//! * a block of the language `console` is run. `$ ` begins a command, `> ` goes on with it, and what follows is its output, on
//!   either stream: `…` stands for any text of a line, a line of `…` for any lines.
//!   Pids, times and measures may differ, and the widths of columns.
//! * a command that fails is followed by `$ echo $?`.
//! * a block of the language `json` directly after one is the output of its last command, as to its members and their types. A
//!   member `"…"` stands for any other members.
//! * `console needs=WHAT` is not run, and reported as ignored.
//!
//! * a request with `curl` is in such a block. The address `127.0.0.1:8480` of a page stands for a free one.
//!
//! `DOCS_UPDATE=1 cargo test --workspace --test docs` writes what is printed into the pages.
//!
//! A command line of `agent-proxy` that is shown anywhere has to parse: see `src/args/documented.rs`. Names in ARCHITECTURE.md are
//! compared with the source.

mod links;
mod matching;
mod names;
mod page;
mod shape;
mod shell;

use libtest_mimic::{Arguments, Failed, Trial};

use page::{CodeBlock, DocPage};

fn main() {
    let arguments = Arguments::from_args();
    let pages = page::all();
    let mut trials: Vec<Trial> = vec![];
    for page in &pages {
        for block in page.blocks.iter().filter(|block| block.is_skipped()) {
            let needs = block.needs.as_deref().unwrap_or_default();
            let name = format!("{}:{} (needs {needs})", page.name, block.line);
            trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
        }
        if page.blocks.iter().any(CodeBlock::is_run) {
            let page = page.clone();
            trials.push(Trial::test(page.name.clone(), move || runs(&page)));
        }
    }
    let requests = pages.clone();
    trials.push(Trial::test("requests", move || are_run(&requests)));
    trials.push(Trial::test("agents", the_readme_has_the_agents_as_their_page_has_them));
    trials.push(Trial::test("names", || names::check().map_err(Failed::from)));
    trials.push(Trial::test("links", move || links::check(&pages).map_err(Failed::from)));
    libtest_mimic::run(&arguments, trials).exit();
}

/// Checks that each request that a page shows is in a block that is run.
fn are_run(pages: &[DocPage]) -> Result<(), Failed> {
    let idle = pages.iter().flat_map(|page| {
        let blocks = page.blocks.iter();
        blocks.flat_map(|block| block.idle_requests().map(|line| format!("{}:{}: {line}", page.name, block.line)))
    });
    let idle: Vec<String> = idle.collect();
    let shown = pages.iter().flat_map(DocPage::commands).filter(|command| command.text.starts_with("curl ")).count();
    match (idle.is_empty(), shown) {
        (true, 1..) => Ok(()),
        (true, 0) => Err("no page shows a request: is it `curl`?".into()),
        (false, _) => Err(format!("in no `console` block, so that nothing runs it:\n{}", idle.join("\n")).into()),
    }
}

/// Rows of a table whose first cell says something, without the links to reasons: `✓` or `–` in each cell.
fn verdicts(text: &str, heading: &str) -> Vec<Vec<String>> {
    let lines = text.lines().skip_while(|line| !line.starts_with(heading)).take_while(|line| line.starts_with('|'));
    let cell = |cell: &str| cell.split(" (").next().unwrap_or_default().trim().to_owned();
    lines.map(|line| line.trim_matches('|').split('|').map(cell).collect()).collect()
}

/// Checks that what the README says of agents is what was shown with them.
fn the_readme_has_the_agents_as_their_page_has_them() -> Result<(), Failed> {
    let read = |name: &str| std::fs::read_to_string(page::root().join(name));
    let shown = verdicts(&read("docs/agents.md")?, "| | claude-code");
    let told = verdicts(&read("README.md")?, "| what it tells | claude-code");
    if told.len() < 10 || shown.first().map(|row| &row[1..]) != told.first().map(|row| &row[1..]) {
        return Err("the README has no table of what each agent tells, or it has other agents".into());
    }
    let wrong: Vec<String> =
        told.iter().skip(2).filter(|row| !shown.contains(row)).map(|row| row.join(" | ")).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!("docs/agents.md does not have these rows of the README:\n{}", wrong.join("\n")).into())
}

/// Runs a page.
fn runs(page: &DocPage) -> Result<(), Failed> {
    let commands: Vec<_> = page.commands().collect();
    let runs = shell::run(&commands)?;
    let mut wrong = String::new();
    let mut lines: Vec<String> = page.text.lines().map(|line| format!("{line}\n")).collect();
    for (at, (command, run)) in commands.iter().zip(&runs).enumerate().rev() {
        let shown = commands.get(at + 1).is_some_and(|next| next.text.starts_with("echo $?"));
        if run.code != 0 && !shown {
            wrong.push_str(&format!("\nit fails with {}, and no `$ echo $?` follows", run.code));
        } else if let Err(why) = command.judge(&run.output) {
            wrong.push_str(&format!("\n{why}"));
            let (range, text) = command.update(&run.output);
            lines.splice(range, [text]);
        } else {
            continue;
        }
        wrong.push_str(&format!("\n{}:{}: $ {}\nit prints:\n{}\n", page.name, command.line, command.text, run.output));
    }
    if wrong.is_empty() {
        return Ok(());
    }
    if std::env::var_os("DOCS_UPDATE").is_some() {
        std::fs::write(page::root().join(&page.name), lines.concat())?;
        wrong.push_str("\nThe page shows that now: look at it.");
    }
    Err(wrong.into())
}
