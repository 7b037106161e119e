//! Text of agents and processes, made harmless for a screen.

/// Makes text of an agent or process safe for a terminal. Characters that could move the cursor, hide or reorder other text, or be
/// seen by nobody, become `\u{…}`; newlines and tabs stay if `multiline`.
pub fn printable(text: &str, multiline: bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) || c.is_control() && !(multiline && matches!(c, '\n' | '\t')) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Returns true for bidirectional controls, invisible spaces, and tags: the page shows the same ones (`HIDDEN` of `text.js`).
pub fn is_hidden(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\tc\n", true), "a\\u{1b}[2Jb\tc\n");
        assert_eq!(printable("two\nlines", false), "two\\nlines");
        assert_eq!(printable("\u{9b}31m ü", true), "\\u{9b}31m ü");
    }

    #[test]
    fn nothing_is_hidden_or_reordered() {
        assert_eq!(printable("rm \u{202e}fr-\u{202c} x", true), "rm \\u{202e}fr-\\u{202c} x");
        assert_eq!(printable("a\u{200b}b\u{2066}c\u{e0041}", false), "a\\u{200b}b\\u{2066}c\\u{e0041}");
        // What scripts and families of emoji are written with stays.
        assert_eq!(printable("نمی\u{200c}خواهم 👩\u{200d}💻 שלום", false), "نمی\u{200c}خواهم 👩\u{200d}💻 שלום");
    }
}
