//! Permission requests that nobody has answered yet.

use ipc_protocol::Event;

use super::SessionCore;
use crate::{description::OpenPermission, error::Error};

/// Maximum number of remembered requests. Adapters refuse more long before.
const MAX_OPEN: usize = 256;

/// Open requests, oldest first.
#[derive(Debug, Default)]
pub(super) struct OpenPermissions(Vec<OpenPermission>);

impl OpenPermissions {
    /// Applies an event. Returns true if it opened or closed a request.
    fn record(&mut self, event: &Event) -> bool {
        let before = self.0.len();
        match event {
            Event::PermissionRequested(request)
                if before < MAX_OPEN && self.0.iter().all(|open| open.id != request.id) =>
            {
                self.0.push(OpenPermission::from(&**request));
            }
            Event::PermissionResolved { id, .. } => self.0.retain(|open| open.id != *id),
            _ => {}
        }
        self.0.len() != before
    }
}

impl SessionCore {
    /// Shows the requests that are open after an event.
    pub(super) fn note_permission(&mut self, event: &Event) {
        if self.open_permissions.record(event) {
            let open = self.open_permissions.0.clone();
            self.show(move |view| view.open_permissions = open);
        }
    }

    /// Error of a call for which the session is too busy now.
    pub(super) fn busy_error(&self) -> Error {
        let permission = self.open_permissions.0.first().map(|open| open.id.clone());
        Error::Busy { session: self.id.clone(), permission }
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{Json, PermissionRequest, ResolvedBy};

    use super::*;

    #[test]
    fn a_request_is_open_until_it_is_resolved() {
        let requested = |id: &str| {
            Event::PermissionRequested(Box::new(PermissionRequest {
                id: id.into(),
                tool_call_id: None,
                title: "Run make".into(),
                tool: "shell".into(),
                kind: "execute".into(),
                command: Some("make".into()),
                paths: Vec::new(),
                input: Json::null(),
                options: Vec::new(),
                parent: None,
            }))
        };
        let resolved = |id: &str| Event::PermissionResolved { id: id.into(), option: None, by: ResolvedBy::Deadline };
        let mut open = OpenPermissions::default();
        let ids = |open: &OpenPermissions| open.0.iter().map(|open| open.id.clone()).collect::<Vec<_>>();
        assert!(open.record(&requested("a")) && open.record(&requested("b")));
        assert!(!open.record(&requested("a")), "a host that takes over hears of it twice");
        assert!(!open.record(&resolved("c")));
        assert_eq!(ids(&open), ["a", "b"]);
        assert!(open.record(&resolved("a")));
        assert_eq!(ids(&open), ["b"]);
    }
}
