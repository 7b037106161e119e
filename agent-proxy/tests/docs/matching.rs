//! Comparison of an output with what a page shows.

use crate::shape::ANY;

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
