//! Value of `events --type`: a type, or a group of types.

use std::collections::BTreeSet;

use ipc_protocol::Event;

/// Names that are named where one is wrong.
const SUGGESTIONS: usize = 3;
/// Similarity from which a name may have been meant: 1 is the same.
const SIMILAR: f64 = 0.8;
/// Groups that are no events of ours alone: callers append what is in them, or the agent's name follows.
const OPEN_GROUPS: [&str; 3] = ["agent", "audit", "harness"];

/// Parses a type or a group. Those of callers' own may have any name, so what has an asterisk, or a colon behind a group that is none of ours,
/// is taken; anything else has to be one of ours: of a slip of the keys nothing would ever be printed.
pub(super) fn parse(text: &str) -> Result<String, String> {
    let group = text.split(':').next().unwrap_or_default();
    if text.contains('*') || text.is_empty() || OPEN_GROUPS.contains(&group) {
        return Ok(text.to_owned());
    }
    let kinds = Event::kinds();
    let groups: BTreeSet<&str> = kinds.iter().filter_map(|kind| kind.split_once(':')).map(|(group, _)| group).collect();
    let names: BTreeSet<&str> = kinds.iter().copied().chain(groups.iter().copied()).chain(OPEN_GROUPS).collect();
    if names.contains(text) {
        return Ok(text.to_owned());
    }
    let is_foreign = text.contains(':')
        && !groups.contains(group)
        && !groups.iter().any(|known| strsim::damerau_levenshtein(known, group) <= 1);
    if is_foreign {
        return Ok(text.to_owned());
    }
    // A word of one, as in `tool`, or one with a slip of the keys.
    let similarity = |name: &str| if name.contains(text) { 1.0 } else { strsim::jaro_winkler(text, name) };
    let mut near: Vec<(f64, &str)> = names.iter().map(|name| (similarity(name), *name)).collect();
    near.retain(|(similarity, _)| *similarity >= SIMILAR);
    near.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let near: Vec<&str> = near.into_iter().map(|(_, name)| name).take(SUGGESTIONS).collect();
    let known = if near.is_empty() {
        format!("groups are {}", groups.into_iter().chain(OPEN_GROUPS).collect::<Vec<_>>().join(", "))
    } else {
        format!("near are {}", near.join(", "))
    };
    Err(format!("no event of ours has the type {text:?}: {known}; one of your own is written '{text}*'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_and_those_of_callers_are_taken() {
        let kinds = Event::kinds().iter().copied();
        let more = [
            "stream",
            "log",
            "str*",
            "slack:*",
            "slack:message",
            "nosuch*",
            "harness:codex",
            "agent:action",
            "audit:call",
            "*",
        ];
        for text in kinds.chain(more) {
            assert_eq!(parse(text).as_deref(), Ok(text));
        }
    }

    #[test]
    fn a_slip_of_the_keys_names_what_is_near() {
        for (text, near) in [
            ("sesion:ended", "session:ended"),
            ("session:end", "session:ended"),
            ("stream:txt", "stream:text"),
            ("strem", "stream"),
            ("tool", "near are stream:tool_end, stream:tool_start, stream:tool_update;"),
            ("nosuch", "groups are action, budget"),
            ("nosuch", "'nosuch*'"),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(near), "{text}: {why}");
        }
    }
}
