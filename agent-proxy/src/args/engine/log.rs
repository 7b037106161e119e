//! Arguments of `log`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `log`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy log check ~/agents          # a state directory, or its log.sqlite\n  \
    agent-proxy log salvage ~/agents new.sqlite\n  \
    mv new.sqlite ~/agents/log.sqlite       # without a daemon\n\n\
    Exit codes: 0 all is whole, or the new file has what is; 1 something is damaged (check); 3 there is no such file.")]
pub(crate) struct LogArgs {
    /// Command to run.
    #[command(subcommand)]
    pub(crate) command: LogCommand,
}

/// The commands of `log`.
#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// List what is damaged; changes nothing
    Check {
        /// The file, or the state directory that it is in
        #[arg(value_name = "PATH")]
        path: PathBuf,
    },
    /// Write what is whole to a new file, and list what is not
    ///
    /// Streams keep their offsets; a session:gap stands for events that are lost. A stream whose name is lost is called salvaged-N.
    /// The old file is left as it is. Move its -wal and -shm away with it before the new one takes its place.
    Salvage {
        /// The file, or the state directory that it is in
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// The new file; there is nothing of that name yet
        #[arg(value_name = "NEW")]
        to: PathBuf,
    },
}
