//! Comparison of an output with what a page shows.

use serde_json::Value;

/// Stands for any text of a line, for any lines, and for any members of an object.
const ANY: &str = "…";

/// Compares lines. Pids, times and measures may differ, see [`normal`].
pub(crate) fn lines(shown: &[String], printed: &str) -> bool {
    let printed: Vec<String> = printed.lines().map(normal).collect();
    let shown: Vec<String> = shown.iter().map(|line| normal(line)).collect();
    is_all(&shown, &printed)
}

fn is_all(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == ANY => (0..=printed.len()).any(|at| is_all(rest, &printed[at..])),
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, others)| is_line(line, first) && is_all(rest, others))
        }
    }
}

fn is_line(shown: &str, printed: &str) -> bool {
    let Some((before, after)) = shown.split_once(ANY) else { return shown == printed };
    let Some(rest) = printed.strip_prefix(before) else { return false };
    rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| is_line(after, &rest[at..]))
}

/// A line without what differs from run to run: widths of columns, numbers of three digits or with a fraction, the units of durations
/// behind them, and UUIDs.
fn normal(line: &str) -> String {
    let mut words: Vec<String> = line.split_whitespace().map(measure).collect();
    for at in 1..words.len() {
        if words[at - 1].ends_with('#') {
            let unit = words[at].trim_end_matches([',', ':', ';', ')']);
            if ["µs", "ms", "s"].contains(&unit) {
                words[at] = words[at].replacen(unit, "#", 1);
            }
        }
    }
    words.join(" ")
}

/// A word whose numbers are `#`, where they are a measure, a time or an id.
fn measure(word: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(from) = rest.find(|c: char| c.is_ascii_digit()) {
        let whole = rest[from..].find(|c: char| !c.is_ascii_hexdigit() && c != '-').map_or(rest.len(), |at| from + at);
        let number =
            rest[from..].find(|c: char| !c.is_ascii_digit() && !".:-".contains(c)).map_or(rest.len(), |at| from + at);
        let text = rest[from..number].trim_end_matches(['.', ':', '-']);
        // A UUID may begin with letters.
        let before = rest[..from].trim_end_matches(|c: char| c.is_ascii_hexdigit()).len();
        if whole - before == 36 && rest[before..whole].matches('-').count() == 4 {
            out.push_str(&rest[..before]);
            out.push('#');
            rest = &rest[whole..];
            continue;
        }
        let any = text.contains('.') || text.bytes().filter(u8::is_ascii_digit).count() >= 3;
        out.push_str(&rest[..from]);
        out.push_str(if any { "#" } else { text });
        rest = &rest[from + text.len()..];
    }
    out + rest
}

/// Compares members and types of JSON; `null` is like anything, since most members may be missing.
///
/// # Errors
/// The first difference.
pub(crate) fn shape(at: &str, shown: &Value, printed: &Value) -> Result<(), String> {
    match (shown, printed) {
        (Value::Null, _) | (_, Value::Null) => Ok(()),
        (Value::Object(shown), Value::Object(printed)) => {
            let open = shown.contains_key(ANY);
            for (name, value) in shown.iter().filter(|(name, _)| *name != ANY) {
                let now = printed.get(name).ok_or_else(|| format!("no member {at}.{name} any more"))?;
                shape(&format!("{at}.{name}"), value, now)?;
            }
            let new = printed.keys().find(|name| !open && !shown.contains_key(*name));
            new.map_or(Ok(()), |name| Err(format!("the page lacks the member {at}.{name}")))
        }
        (Value::Array(shown), Value::Array(printed)) => {
            let Some(first) = shown.first() else { return Ok(()) };
            printed.iter().try_for_each(|value| shape(&format!("{at}[]"), first, value))
        }
        (Value::String(_), Value::String(_))
        | (Value::Number(_), Value::Number(_))
        | (Value::Bool(_), Value::Bool(_)) => Ok(()),
        _ => Err(format!("{at} is now {printed}")),
    }
}
