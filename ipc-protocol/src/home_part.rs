//! Parts of the user's home that a session's own home begins with.

use std::{
    fmt,
    path::{Component, Path},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// Part of the user's home that is copied into a session's own before its agent starts. In JSON a word: `login`, `skills`, or a path
/// relative to the home.
///
/// ```
/// use ipc_protocol::HomePart;
/// assert_eq!("login".parse(), Ok(HomePart::Login));
/// assert_eq!("~/.config/tool".parse(), Ok(HomePart::Path(".config/tool".into())));
/// assert!("../of-others".parse::<HomePart>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum HomePart {
    /// The agent's login: files that its catalog row names. They are removed again when the session's processes have ended.
    Login,
    /// The agent's skills: directories that its catalog row names.
    Skills,
    /// A file or directory, relative to the home.
    Path(String),
}

/// Error for a text that is no [`HomePart`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no part of a home: give login, skills, or a path below the home, as in ~/.config/tool")]
pub struct InvalidHomePart {
    /// Text as given.
    pub text: String,
}

impl FromStr for HomePart {
    type Err = InvalidHomePart;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "login" => return Ok(Self::Login),
            "skills" => return Ok(Self::Skills),
            _ => {}
        }
        let below = text.strip_prefix("~/").or_else(|| text.strip_prefix("./")).unwrap_or(text).trim_end_matches('/');
        let mut components = Path::new(below).components().peekable();
        let is_below = components.peek().is_some() && components.all(|part| matches!(part, Component::Normal(_)));
        if !is_below || below.starts_with('~') || below.contains('\0') {
            return Err(InvalidHomePart { text: text.to_owned() });
        }
        Ok(Self::Path(below.to_owned()))
    }
}

impl TryFrom<String> for HomePart {
    type Error = InvalidHomePart;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<HomePart> for String {
    fn from(part: HomePart) -> Self {
        part.to_string()
    }
}

impl fmt::Display for HomePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Login => f.write_str("login"),
            Self::Skills => f.write_str("skills"),
            Self::Path(path) if matches!(path.as_str(), "login" | "skills") => write!(f, "./{path}"),
            Self::Path(path) => f.write_str(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_word_or_a_path_below_the_home() {
        for (text, part) in [
            ("login", HomePart::Login),
            ("skills", HomePart::Skills),
            ("./login", HomePart::Path("login".into())),
            (".codex/config.toml", HomePart::Path(".codex/config.toml".into())),
            ("~/.agents/", HomePart::Path(".agents".into())),
        ] {
            assert_eq!(text.parse(), Ok(part.clone()), "{text}");
            assert_eq!(part.to_string().parse(), Ok(part), "{text}");
        }
        for text in ["", ".", "~", "~/", "/etc/passwd", "../x", "a/../../b", "~root/x", "a\0b"] {
            assert!(text.parse::<HomePart>().is_err(), "{text:?}");
        }
        assert_eq!(serde_json::to_string(&[HomePart::Skills]).expect("JSON"), r#"["skills"]"#);
        assert!(serde_json::from_str::<Vec<HomePart>>(r#"["/etc"]"#).is_err());
    }
}
