//! Commands `export` and `import`: a session's events as JSON lines.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use api_types::{
    ProblemDetails,
    api::{ImportRequest, ImportResponse},
};

use crate::{
    args::persistence::{ExportArgs, ImportArgs},
    client::DaemonClient,
    command_failure::CommandFailure,
    term,
};

/// Writes a session's retained events up to now.
pub(super) async fn export(client: &DaemonClient, args: &ExportArgs) -> Result<(), CommandFailure> {
    let mut lines = client.get_lines(&format!("/v1/sessions/{}/events", args.id)).await?;
    // Created only once there is something to write.
    let path = args.file.as_deref().filter(|path| *path != Path::new("-"));
    let mut file = path.map(create).transpose()?;
    while let Some(batch) = lines.next_batch().await? {
        match (&mut file, path) {
            (Some(file), Some(path)) => {
                batch.iter().try_for_each(|line| writeln!(file, "{line}")).map_err(|error| failed(path, &error))?;
            }
            _ => {
                term::out(batch.iter().map(|line| term::json_for_stdout(&line.to_string()) + "\n").collect::<String>())?
            }
        }
    }
    match (file, path) {
        (Some(mut file), Some(path)) => file.flush().map_err(|error| failed(path, &error).into()),
        _ => Ok(()),
    }
}

fn create(path: &Path) -> Result<BufWriter<File>, ProblemDetails> {
    File::create(path).map(BufWriter::new).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> ProblemDetails {
    ProblemDetails::failed(format!("writing {} failed: {error}", path.display()))
}

/// Imports an exported file into the daemon, and prints the session's id.
pub(super) async fn import(client: &DaemonClient, args: &ImportArgs, as_json: bool) -> Result<(), CommandFailure> {
    let absolute = std::path::absolute(&args.file);
    let path =
        absolute.map_err(|error| ProblemDetails::usage(format!("{} is no path: {error}", args.file.display())))?;
    let imported: ImportResponse = client.post("/v1/import", &ImportRequest { path }).await?;
    if as_json { term::json(&imported) } else { term::line(&imported.session_id) }
}
