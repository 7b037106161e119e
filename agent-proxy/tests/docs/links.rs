//! Links between the pages.

use std::{collections::BTreeSet, fs, path::Path};

use crate::page::{self, DocPage};

/// Checks that each link within the repository has its file, and its heading; and that the book has every page of `docs`.
///
/// # Errors
/// All that do not, a line each.
pub(crate) fn check(pages: &[DocPage]) -> Result<(), String> {
    let root = page::root();
    let mut wrong = String::new();
    for page in pages {
        let folder = root.join(&page.name).parent().expect("a folder").to_owned();
        for (line, target) in targets(&page.text) {
            if let Err(why) = leads(&folder, &root.join(&page.name), target) {
                wrong.push_str(&format!("\n{}:{line}: {target}: {why}", page.name));
            }
        }
    }
    let summary = pages.iter().find(|page| page.name == "docs/SUMMARY.md").expect("the book's table of contents");
    let listed: BTreeSet<String> =
        targets(&summary.text).map(|(_, target)| format!("docs/{}", target.trim_start_matches("./"))).collect();
    for page in pages.iter().filter(|page| page.name.starts_with("docs/") && page.name != summary.name) {
        if !listed.contains(&page.name) {
            wrong.push_str(&format!("\n{}: not in docs/SUMMARY.md", page.name));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Targets of links and pictures outside blocks of code, with their lines.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    let prose = text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    prose
        .flat_map(|(at, line)| line.split("](").skip(1).filter_map(move |rest| Some((at + 1, rest.split_once(')')?.0))))
}

fn leads(folder: &Path, page: &Path, target: &str) -> Result<(), String> {
    if target.starts_with("http://") || target.starts_with("https://") {
        return Ok(());
    }
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let path = if file.is_empty() { page.to_owned() } else { folder.join(file) };
    if !path.exists() {
        return Err("no such file".to_owned());
    }
    let Some(heading) = heading else { return Ok(()) };
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let known = text.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == heading);
    if known { Ok(()) } else { Err("no such heading".to_owned()) }
}

/// The name of a heading in a link, as GitHub and mdBook make it.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
