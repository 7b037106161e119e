//! Table of agents, one a line, and their missing requirements.

use api_types::InstalledAgent;

use super::listing::{Column, ColumnFit, Listing, ListingRow};
use crate::term::{TermStyle, filled, printable};

const COLUMNS: &[Column] = &[
    Column { key: "id", heading: "AGENT", fit: ColumnFit::Whole, from: 0 },
    Column { key: "state", heading: "", fit: ColumnFit::Whole, from: 0 },
    Column { key: "version", heading: "VERSION", fit: ColumnFit::End, from: 0 },
    Column { key: "where", heading: "WHERE", fit: ColumnFit::End, from: 0 },
];

/// Lists the agents.
pub(crate) fn listing(agents: &[InstalledAgent]) -> Listing {
    let row = |agent: &InstalledAgent| {
        let (mark, what) = match (agent.enabled, &agent.path) {
            (false, _) => ("off", "switched off in the catalog".to_owned()),
            (_, Some(path)) if agent.missing.is_empty() => ("ok", path.display().to_string()),
            (_, Some(path)) => ("-", path.display().to_string()),
            (_, None) if agent.any_program => ("ok", agent.description.clone()),
            (_, None) => ("-", "not found".to_owned()),
        };
        let version = agent.version.clone().unwrap_or_default();
        let cells = vec![agent.id.clone(), mark.to_owned(), printable(&version, false), printable(&what, false)];
        ListingRow { cells, json: serde_json::to_value(agent).unwrap_or_default() }
    };
    Listing { columns: COLUMNS, rows: agents.iter().map(row).collect() }
}

/// Formats what the agents lack, for `width` columns, and the commands that install missing ones.
pub(crate) fn notes(agents: &[InstalledAgent], style: TermStyle, width: Option<usize>) -> String {
    let mut text = String::new();
    let lacking: Vec<&InstalledAgent> =
        agents.iter().filter(|agent| agent.enabled && !agent.missing.is_empty()).collect();
    if !lacking.is_empty() {
        text.push('\n');
    }
    for agent in lacking {
        let missing = printable(&agent.missing.join("; "), false);
        text.push_str(&filled(&format!("{}: {missing}\n", style.yellow(&agent.id)), width));
        if let (false, Some(install)) = (agent.found, &agent.install) {
            text.push_str(&format!("    {}\n", printable(install, false)));
        }
    }
    let untried =
        agents.iter().filter(|agent| agent.enabled).filter_map(|agent| Some((agent, agent.untried.as_ref()?)));
    for (at, (agent, why)) in untried.enumerate() {
        let gap = if at == 0 { "\n" } else { "" };
        text.push_str(gap);
        text.push_str(&filled(&format!("{}: {}\n", style.yellow(&agent.id), printable(why, false)), width));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing() {
        let agent = |id: &str| InstalledAgent {
            id: id.into(),
            title: id.into(),
            description: "Any program.".into(),
            enabled: true,
            protocol: "acp".into(),
            any_program: false,
            usable: false,
            found: false,
            path: None,
            version: None,
            tried: Vec::new(),
            untried: None,
            missing: Vec::new(),
            install: Some(format!("npm install {id}")),
            files: Vec::new(),
            mcp_config_files: Vec::new(),
            default_model: None,
            capabilities: Vec::new(),
            supports: api_types::AgentSupport::default(),
        };
        let here = |id: &str| InstalledAgent { found: true, path: Some(format!("/bin/{id}").into()), ..agent(id) };
        let agents = [
            InstalledAgent {
                version: Some("1.2.3".into()),
                untried: Some("x 1.2.3 was not tried".into()),
                ..here("one")
            },
            InstalledAgent { missing: vec!["KEY is not in the environment".into()], ..here("two") },
            InstalledAgent { missing: vec!["x is not in PATH".into(), "y".into()], ..agent("three") },
            InstalledAgent { enabled: false, missing: vec!["z".into()], ..agent("four") },
            InstalledAgent { any_program: true, ..agent("five") },
        ];
        let expected = "\
AGENT       VERSION  WHERE
one    ok   1.2.3    /bin/one
two    -             /bin/two
three  -             not found
four   off           switched off in the catalog
five   ok            Any program.

two: KEY is not in the environment
three: x is not in PATH; y
    npm install three

one: x 1.2.3 was not tried
";
        let table = listing(&agents).table(TermStyle::PLAIN, None);
        assert_eq!(format!("{table}{}", notes(&agents, TermStyle::PLAIN, None)), expected);
    }
}
