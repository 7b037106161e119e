//! Arguments for the container that an agent runs in.

use std::path::Path;

use agents::ProfileContainer;
use api_types::ProblemDetails;
use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use ipc_protocol::{ContainerEngine, SessionMount};

/// Container of a session.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Containment and limits")]
pub(crate) struct ContainerArgs {
    /// Run the agent in a container of this image, by podman or docker; it is pulled where it is missing
    ///
    /// The working directory is mounted at its own path. The agent gets the session's variables, and none of yours.
    #[arg(long = "container", value_name = "IMAGE[:TAG]")]
    pub(crate) container_image: Option<String>,
    /// Mount a file or directory into the container; repeatable
    #[arg(long = "mount", value_name = "SRC:DST[:ro]")]
    pub(crate) mounts: Vec<SessionMount>,
    /// Program that runs the container [default: the first that is installed of podman and docker]
    #[arg(long, value_name = "NAME", value_parser = engine())]
    pub(crate) engine: Option<ContainerEngine>,
}

fn engine() -> impl TypedValueParser<Value = ContainerEngine> {
    PossibleValuesParser::new(ContainerEngine::ALL.map(|(_, name)| name))
        .try_map(|name| name.parse::<ContainerEngine>())
}

impl ContainerArgs {
    /// Sets the given values in `container`, with sources that are relative to the current directory made absolute.
    ///
    /// # Errors
    /// `usage` for a source that is not there.
    pub(crate) fn apply_to(self, container: &mut ProfileContainer) -> Result<(), ProblemDetails> {
        container.image = self.container_image.or(container.image.take());
        container.engine = self.engine.or(container.engine);
        for mount in self.mounts {
            let failed = |error: String| ProblemDetails::usage(format!("--mount {mount}: {error}"));
            let real = Path::new(&mount.source).canonicalize().map_err(|error| failed(error.to_string()))?;
            let source = real.into_os_string().into_string().map_err(|_| failed("it is not UTF-8".to_owned()))?;
            container.mounts.push(SessionMount { source, ..mount });
        }
        Ok(())
    }
}
