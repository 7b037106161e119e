//! The versions of agents that this release was tried with.

use std::cmp::Ordering;

use crate::discovery::ProgramVersion;

/// An agent's version, and those that this release was tried with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownVersions {
    /// `NAME VERSION` or `NAME FIRST - LAST`.
    pub tried: Vec<String>,
    /// `NAME VERSION`, as the agent says or its files say; `None` where neither does.
    pub program: Option<String>,
}

impl KnownVersions {
    /// A sentence for people where the version is known, and is none that this release was tried with.
    pub fn untried(&self) -> Option<String> {
        let program = self.program.as_deref().filter(|_| !self.tried.is_empty())?;
        if self.tried.iter().any(|range| is_in(program, range)) {
            return None;
        }
        let tried = self.tried.join(", ");
        Some(format!(
            "{program} was not tried with this release ({tried} were): it may not ask before it runs a tool; calls that bypass the \
             permission policy are told (permission:bypassed), and abort the turn where they would have been denied"
        ))
    }
}

/// Returns whether `program` is in `range`. What is no plain version is only in a range that names it.
fn is_in(program: &str, range: &str) -> bool {
    let (Some((name, version)), Some((named, versions))) = (program.split_once(' '), range.split_once(' ')) else {
        return program == range;
    };
    let (first, last) = versions.split_once(" - ").unwrap_or((versions, versions));
    let between = |first: ProgramVersion, version: ProgramVersion, last: ProgramVersion| {
        version.cmp(&first) != Ordering::Less && version.cmp(&last) != Ordering::Greater
    };
    let plain = |text: &str| ProgramVersion::parse(text).filter(|version| version.to_string() == text);
    name == named
        && match (plain(first), plain(version), plain(last)) {
            (Some(first), Some(version), Some(last)) => between(first, version, last),
            _ => version == first || version == last,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn untried(program: Option<&str>, tried: &[&str]) -> bool {
        let tried = tried.iter().map(|range| (*range).to_owned()).collect();
        KnownVersions { tried, program: program.map(str::to_owned) }.untried().is_some()
    }

    #[test]
    fn a_version_is_tried_if_a_range_of_its_name_has_it() {
        let tried = ["codex-acp 0.16.0", "@x/codex-acp 2.6.0 - 2.7.1"];
        for program in ["codex-acp 0.16.0", "@x/codex-acp 2.6.0", "@x/codex-acp 2.6.9", "@x/codex-acp 2.7.1"] {
            assert!(!untried(Some(program), &tried), "{program}");
        }
        for program in
            ["codex-acp 2.6.0", "@x/codex-acp 0.16.0", "@x/codex-acp 2.7.2", "@x/codex-acp 2.7.1-rc.1", "codex-acp"]
        {
            assert!(untried(Some(program), &tried), "{program}");
        }
        assert!(!untried(Some("anything 1.0.0"), &[]) && !untried(None, &tried), "nothing is known");
    }
}
