//! Comparison of JSON with what a page shows.

use serde_json::Value;

/// Stands for any members of an object.
pub(crate) const ANY: &str = "…";

/// Compares members and types of JSON; `null` is like anything, since most members may be missing.
///
/// # Errors
/// The first difference.
pub(crate) fn shape(at: &str, shown: &Value, printed: &Value) -> Result<(), String> {
    match (shown, printed) {
        (Value::Null, _) | (_, Value::Null) => Ok(()),
        (Value::Object(shown), Value::Object(printed)) => {
            let open = shown.contains_key(ANY);
            for (name, value) in shown.iter().filter(|(name, _)| *name != ANY) {
                let now = printed.get(name).ok_or_else(|| format!("no member {at}.{name} any more"))?;
                shape(&format!("{at}.{name}"), value, now)?;
            }
            let new = printed.keys().find(|name| !open && !shown.contains_key(*name));
            new.map_or(Ok(()), |name| Err(format!("the page lacks the member {at}.{name}")))
        }
        (Value::Array(shown), Value::Array(printed)) => {
            let Some(first) = shown.first() else { return Ok(()) };
            if at.is_empty() && printed.is_empty() {
                return Err("nothing is listed".to_owned());
            }
            printed.iter().try_for_each(|value| shape(&format!("{at}[]"), first, value))
        }
        (Value::String(_), Value::String(_))
        | (Value::Number(_), Value::Number(_))
        | (Value::Bool(_), Value::Bool(_)) => Ok(()),
        _ => Err(format!("{at} is now {printed}")),
    }
}
