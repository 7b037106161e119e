//! Arguments for the form of a listing.

use std::str::FromStr;

use clap::Args;

/// Arguments of commands that list.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FormatArgs {
    /// Print the ids alone, one a line
    #[arg(short, long, conflicts_with = "format")]
    quiet: bool,
    /// Form of the list: table, json, jsonl, or a template such as '{id}\t{state}'
    ///
    /// A template names columns of the table, in lower case, or fields of the JSON with dots between them. `\t` and `\n` stand for
    /// a tab and a new line, `{{` for a brace. json is one array, jsonl one object a line.
    #[arg(long, value_name = "FORMAT")]
    format: Option<ListingFormat>,
}

impl FormatArgs {
    /// Returns the form of the list, with the flag `--json` of all commands.
    pub(crate) fn form(&self, as_json: bool) -> ListingFormat {
        match &self.format {
            _ if self.quiet => ListingFormat::Ids,
            Some(format) => format.clone(),
            None if as_json => ListingFormat::Json,
            None => ListingFormat::Table,
        }
    }
}

/// Form of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListingFormat {
    /// Table for people.
    Table,
    /// One JSON array.
    Json,
    /// One JSON object a line.
    JsonLines,
    /// Ids alone, one a line.
    Ids,
    /// Template, filled in for each row.
    Template(Vec<TemplatePart>),
}

impl ListingFormat {
    /// Returns true for the forms that are JSON.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self, Self::Json | Self::JsonLines)
    }

    /// Returns true if the form prints a field of the JSON.
    pub(crate) fn prints(&self, field: &str) -> bool {
        match self {
            Self::Json | Self::JsonLines => true,
            Self::Table | Self::Ids => false,
            Self::Template(parts) => parts.iter().any(|part| match part {
                TemplatePart::Field(path) => path.split('.').next() == Some(field),
                TemplatePart::Text(_) => false,
            }),
        }
    }
}

/// Part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplatePart {
    /// Text as it is.
    Text(String),
    /// Name of a column, or path of a field of the JSON.
    Field(String),
}

impl FromStr for ListingFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "table" => return Ok(Self::Table),
            "json" => return Ok(Self::Json),
            "jsonl" => return Ok(Self::JsonLines),
            _ => {}
        }
        let parts = template(text)?;
        if !parts.iter().any(|part| matches!(part, TemplatePart::Field(_))) {
            return Err("there are table, json, jsonl and templates with a field, as in '{id}\\t{state}'".to_owned());
        }
        Ok(Self::Template(parts))
    }
}

fn template(text: &str) -> Result<Vec<TemplatePart>, String> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('t') => plain.push('\t'),
                Some('n') => plain.push('\n'),
                Some('\\') => plain.push('\\'),
                other => {
                    return Err(format!(
                        "\\{} is none of \\t, \\n and \\\\",
                        other.map_or_else(String::new, String::from)
                    ));
                }
            },
            '{' if chars.peek() == Some(&'{') => {
                chars.next();
                plain.push('{');
            }
            '{' => {
                let mut field = String::new();
                loop {
                    match chars.next() {
                        Some('}') => break,
                        Some(c) => field.push(c),
                        None => return Err(format!("the brace before {field:?} is not closed")),
                    }
                }
                if field.trim().is_empty() {
                    return Err("{} names no field".to_owned());
                }
                if !plain.is_empty() {
                    parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
                }
                parts.push(TemplatePart::Field(field.trim().to_owned()));
            }
            c => plain.push(c),
        }
    }
    if !plain.is_empty() {
        parts.push(TemplatePart::Text(plain));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_as_they_are_written() {
        let field = |name: &str| TemplatePart::Field(name.into());
        let text = |text: &str| TemplatePart::Text(text.into());
        for (given, expected) in [
            ("table", ListingFormat::Table),
            ("json", ListingFormat::Json),
            ("jsonl", ListingFormat::JsonLines),
            ("{id}", ListingFormat::Template(vec![field("id")])),
            (r"{id}\t{ a.b }!", ListingFormat::Template(vec![field("id"), text("\t"), field("a.b"), text("!")])),
            (r"{{{id}}\\", ListingFormat::Template(vec![text("{"), field("id"), text("}\\")])),
        ] {
            assert_eq!(given.parse(), Ok(expected), "{given}");
        }
        for (given, part) in
            [("yaml", "table, json"), ("{id", "not closed"), ("{}", "no field"), (r"{id}\x", "none of"), ("", "jsonl")]
        {
            let error = given.parse::<ListingFormat>().expect_err(given);
            assert!(error.contains(part), "{given}: {error}");
        }
    }

    #[test]
    fn which_fields_a_form_prints() {
        let form = |text: &str| text.parse::<ListingFormat>().expect("a form");
        assert!(form("json").prints("x") && form("{x.y}").prints("x"));
        assert!(!form("table").prints("x") && !form("{xy}").prints("x"));
    }
}
