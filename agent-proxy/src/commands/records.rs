//! Session records: `sessions --all`, `rename`, `tag`, `archive`.

use api_types::{
    ProblemDetails, SessionFilter, SessionRecord,
    api::{RecordChange, path_segment},
};
use ipc_protocol::SessionId;
use serde_json::Value;

use super::{
    sessions::{parse, tell_damage},
    several::{SelectedSessions, has_ended},
};
use crate::{
    args::{
        ListingFormat,
        persistence::{ArchiveArgs, RenameArgs, TagArgs},
    },
    client::DaemonClient,
    command_failure::CommandFailure,
    render::{self, listing::Listing},
    term,
};

/// Lists the records of the sessions that match a filter.
pub(super) async fn list(
    client: &DaemonClient,
    filter: &SessionFilter,
    form: &ListingFormat,
) -> Result<(), CommandFailure> {
    let json: Vec<Value> = client.get_list(&format!("/v1/records{}", query(filter)?)).await?;
    let records: Vec<SessionRecord> = if form.is_json() { Vec::new() } else { parse(Value::Array(json.clone()))? };
    if *form == ListingFormat::Table {
        tell_damage(client).await?;
    }
    let listing = if form.is_json() { Listing::of_json(json) } else { render::records::listing(&records, json) };
    listing.print(form, "no sessions that all of this fits")
}

/// Formats the filter as a query: `?status=suspended&tag=red`; empty for all.
fn query(filter: &SessionFilter) -> Result<String, ProblemDetails> {
    let fields = serde_json::to_value(filter).map_err(|error| ProblemDetails::failed(format!("JSON: {error}")))?;
    let mut query = String::new();
    for (name, value) in fields.as_object().into_iter().flatten() {
        let value = match value {
            Value::String(text) => path_segment(text),
            Value::Bool(true) => "true".to_owned(),
            _ => continue,
        };
        query.push(if query.is_empty() { '?' } else { '&' });
        query.push_str(&format!("{name}={value}"));
    }
    Ok(query)
}

/// Sets or removes a session's title.
pub(super) async fn rename(client: &DaemonClient, args: RenameArgs, as_json: bool) -> Result<(), CommandFailure> {
    let change = RecordChange { title: Some(args.title), ..RecordChange::default() };
    self::change(client, &args.id, &change, as_json).await
}

/// Adds and removes labels of a session.
pub(super) async fn tag(client: &DaemonClient, args: TagArgs, as_json: bool) -> Result<(), CommandFailure> {
    let change = RecordChange { add_tags: args.add, remove_tags: args.remove, ..RecordChange::default() };
    self::change(client, &args.id, &change, as_json).await
}

/// Archives sessions, or restores them.
pub(super) async fn archive(client: &DaemonClient, args: &ArchiveArgs, as_json: bool) -> Result<(), CommandFailure> {
    let undo = args.undo;
    let path = if undo { "/v1/records?archived=true" } else { "/v1/records" };
    let wanted = |record: &Value| if undo { record["archived"] == true } else { has_ended(record) };
    let sessions = SelectedSessions::find(client, &args.sessions, path, wanted).await?;
    let several = sessions.several;
    let archive = move |client: DaemonClient, id: SessionId| async move {
        let change = RecordChange { archived: Some(!undo), ..RecordChange::default() };
        client.post::<Value>(&format!("/v1/records/{id}"), &change).await
    };
    let report = |_: &SessionId, record: Result<Value, ProblemDetails>| match record? {
        record if as_json => term::json(&record),
        record if several => term::line(record["sessionId"].as_str().unwrap_or_default()),
        _ => Ok(()),
    };
    sessions.each(client, as_json, archive, report).await
}

async fn change(
    client: &DaemonClient,
    id: &SessionId,
    change: &RecordChange,
    as_json: bool,
) -> Result<(), CommandFailure> {
    let record: Value = client.post(&format!("/v1/records/{id}"), change).await?;
    if as_json { term::json(&record) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use api_types::SessionStatus;

    use super::*;

    #[test]
    fn filters_as_queries() {
        assert_eq!(query(&SessionFilter::default()).expect("a query"), "");
        let filter = SessionFilter {
            status: vec![SessionStatus::Idle, SessionStatus::Suspended],
            text: Some("a b&c".into()),
            archived: true,
            ..SessionFilter::default()
        };
        let query = query(&filter).expect("a query");
        let mut parts: Vec<_> = query.trim_start_matches('?').split('&').collect();
        parts.sort_unstable();
        assert_eq!(parts, ["archived=true", "status=idle%2Csuspended", "text=a%20b%26c"]);
    }
}
