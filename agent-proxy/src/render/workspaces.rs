//! Table of workspaces, and the changed files of one, one a line.

use api_types::{ChangedFile, ProblemDetails, WorkspaceInfo};
use ipc_protocol::FileChange;

use super::{
    listing::{Column, ColumnFit, Listing, ListingRow},
    moment,
};
use crate::term::printable;

const COLUMNS: &[Column] = &[
    Column { key: "id", heading: "SESSION", fit: ColumnFit::Id, from: 0 },
    Column { key: "kind", heading: "KIND", fit: ColumnFit::Whole, from: 0 },
    Column { key: "changed", heading: "CHANGED", fit: ColumnFit::Number, from: 0 },
    Column { key: "created", heading: "CREATED (UTC)", fit: ColumnFit::Whole, from: 100 },
    Column { key: "source", heading: "SOURCE", fit: ColumnFit::Start, from: 0 },
    Column { key: "path", heading: "PATH", fit: ColumnFit::Start, from: 140 },
];

/// Lists the workspaces.
///
/// # Errors
/// None that is known: each is plain data.
pub(crate) fn listing(workspaces: &[WorkspaceInfo]) -> Result<Listing, ProblemDetails> {
    let row = |workspace: &WorkspaceInfo| {
        let cells = vec![
            workspace.session_id.to_string(),
            workspace.kind.to_string(),
            workspace.changed_files.map_or_else(|| "?".to_owned(), |files| files.to_string()),
            moment(workspace.created_at),
            printable(&workspace.source, false),
            printable(&workspace.path, false),
        ];
        let json = serde_json::to_value(workspace).map_err(|error| ProblemDetails::failed(format!("JSON: {error}")))?;
        Ok(ListingRow { cells, json })
    };
    Ok(Listing { columns: COLUMNS, rows: workspaces.iter().map(row).collect::<Result<_, ProblemDetails>>()? })
}

/// Lists changed files: `created`, `modified`, `deleted` or `moved`, and the path.
pub(crate) fn changed_files(files: &[ChangedFile]) -> String {
    let line = |file: &ChangedFile| {
        let change = match file.change {
            FileChange::Created => "created",
            FileChange::Modified => "modified",
            FileChange::Deleted => "deleted",
            FileChange::Moved => "moved",
        };
        let from =
            file.moved_from.as_deref().map_or_else(String::new, |from| format!("{} -> ", printable(from, false)));
        format!("{change:<9}{from}{}\n", printable(&file.path, false))
    };
    files.iter().map(line).collect()
}
