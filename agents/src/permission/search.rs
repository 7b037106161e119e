//! Start of a search, for rules on paths.

/// Prefix of an unknown path: it matches no real path, since a URL is none.
const UNKNOWN: &str = "glob://";

/// Returns the place where a search in `directory` for the glob `pattern` starts: the part before the first wildcard. Returns `None` if
/// that is `directory` itself.
pub(crate) fn beginning(pattern: &str, directory: Option<&str>) -> Option<String> {
    let alternatives = pattern.contains(['{', '(']);
    let elsewhere = ["..", "{/", ",/", "(/", "|/"].iter().any(|leads| pattern.contains(leads));
    if pattern.contains('\\') || alternatives && elsewhere {
        return Some(format!("{UNKNOWN}{pattern}"));
    }
    let is_absolute = pattern.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in pattern.split('/') {
        if part == ".." {
            // The `**` may stand for any number of directories, or none.
            while parts.pop_if(|last| *last == "**").is_some() {}
        }
        match (part, parts.last()) {
            ("" | ".", _) => {}
            ("..", Some(last)) if *last != ".." => drop(parts.pop()),
            ("..", _) if is_absolute => {}
            (part, _) => parts.push(part),
        }
    }
    let literal = parts.iter().take_while(|part| !part.contains(['*', '?', '[', '{', '(']));
    let head = literal.copied().collect::<Vec<_>>().join("/");
    match directory {
        _ if is_absolute => Some(format!("/{head}")),
        _ if head.is_empty() => None,
        Some(directory) if !head.starts_with('~') => Some(format!("{directory}/{head}")),
        _ => Some(head),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_begins_before_the_first_wildcard() {
        for (pattern, directory, begins) in [
            ("**/*.rs", None, None),
            ("*.rs", Some("/w"), None),
            ("/etc/**", None, Some("/etc")),
            ("/etc/passwd", Some("/w"), Some("/etc/passwd")),
            ("/**/passwd", None, Some("/")),
            ("/*", None, Some("/")),
            ("../../etc/pass*", None, Some("../../etc")),
            ("../x/*", Some("/w/d"), Some("/w/d/../x")),
            ("a*/../../etc/*", None, Some("../etc")),
            ("**/../../*", None, Some("../..")),
            ("/a/../../etc/*", None, Some("/etc")),
            ("secret/*", None, Some("secret")),
            ("secret/*", Some("d"), Some("d/secret")),
            ("~/x/*", Some("/w"), Some("~/x")),
            ("src/{a,b}.rs", None, Some("src")),
            ("{a,../../etc}/x", None, Some("glob://{a,../../etc}/x")),
            ("{a,/etc}/x", None, Some("glob://{a,/etc}/x")),
            ("\\.\\./x", None, Some("glob://\\.\\./x")),
        ] {
            assert_eq!(beginning(pattern, directory).as_deref(), begins, "{pattern} in {directory:?}");
        }
    }
}
