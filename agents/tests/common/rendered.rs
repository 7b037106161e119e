//! Actions as text, for snapshots.

use agents::Action;

/// Renders each action as a line of at most `most` characters: as `own` does, else events as their types and payloads.
pub(crate) fn rendered(actions: &[Action], most: usize, own: impl Fn(&Action) -> Option<String>) -> String {
    let line = |action: &Action| match action {
        Action::Event(event) => {
            let value = serde_json::to_value(event).expect("JSON");
            let (kind, payload) = value.as_object().and_then(|map| map.iter().next()).expect("one key");
            format!("{kind} {payload}")
        }
        other => format!("{other:?}"),
    };
    let cut = |line: String| match line.char_indices().nth(most) {
        Some((at, _)) => format!("{}…\n", &line[..at]),
        None => line + "\n",
    };
    actions.iter().map(|action| cut(own(action).unwrap_or_else(|| line(action)))).collect()
}
