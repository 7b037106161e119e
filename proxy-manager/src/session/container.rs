//! Removal of a session's container, when its proxy is gone: a session is over only after that.

use std::{future::pending, pin::Pin};

use ipc_protocol::{ContainerRemoval, ContainerSpec, Receipt};

use crate::{
    blocking::ENDING,
    fork_server::{ForkServerEvent, ProxyGone},
};

/// The container of a session, and what the fork server said of the end meanwhile.
#[derive(Default)]
pub(super) struct ContainerRemover {
    container: Option<Box<ContainerSpec>>,
    pending: Option<Pin<Box<dyn Future<Output = ProxyGone> + Send>>>,
}

impl ContainerRemover {
    pub(super) fn new(container: Option<Box<ContainerSpec>>) -> Self {
        Self { container, pending: None }
    }

    /// Takes the fork server's last word, to return it from [`ContainerRemover::next`] once the container is removed. Returns any other
    /// word.
    pub(super) fn intercept(&mut self, word: Option<ForkServerEvent>) -> Option<ForkServerEvent> {
        match (word, &self.container) {
            (Some(ForkServerEvent::Gone(mut gone)), Some(container)) => {
                let container = container.clone();
                self.pending = Some(Box::pin(async move {
                    gone.receipt.container = Some(remove(*container).await);
                    gone
                }));
                None
            }
            (word, _) => word,
        }
    }

    /// Waits for the removal under way. Resolves never where there is none.
    pub(super) async fn next(&mut self) -> ForkServerEvent {
        let Some(removal) = &mut self.pending else { return pending().await };
        let gone = removal.await;
        self.pending = None;
        ForkServerEvent::Gone(gone)
    }

    /// Removes the container of a session that was swept.
    pub(super) fn sweep(
        &self,
        swept: impl Future<Output = Option<Receipt>> + Send + 'static,
    ) -> Pin<Box<dyn Future<Output = Option<Receipt>> + Send>> {
        let container = self.container.clone();
        Box::pin(async move {
            let mut receipt = swept.await?;
            if let Some(container) = container {
                receipt.container = Some(remove(*container).await);
            }
            Some(receipt)
        })
    }
}

async fn remove(ContainerSpec { program, env, name, .. }: ContainerSpec) -> ContainerRemoval {
    let failed =
        |error: crate::Error| ContainerRemoval { name: name.clone(), is_removed: false, failure: Some(error.chain()) };
    let named = name.clone();
    let removal = ENDING.run("removing a container", move || registry::remove_container(&program, &env, &named)).await;
    let removal = removal.unwrap_or_else(failed);
    if let Some(failure) = &removal.failure {
        tracing::warn!(container = name, failure, "failed to remove a container");
    }
    removal
}
