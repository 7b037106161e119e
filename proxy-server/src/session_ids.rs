//! Ids of sessions in requests: whole ones, and unique beginnings of them.

use proxy_manager::{ProxyManager, SessionFilter, SessionId};

use crate::{ProblemDetails, requests::RouteResult};

/// Number of candidates that an error lists.
const MAX_CANDIDATES: usize = 8;

/// Resolves an id, or the beginning of one of a session that is seen, to the id. Text that no id begins with stays as it is: the call that
/// follows says that there is no such session.
///
/// # Errors
/// `usage` for text that is no id; `ambiguous-id` with the candidates.
pub(crate) fn resolve(
    manager: &ProxyManager,
    text: &str,
    sees: impl Fn(Option<&str>) -> bool,
) -> RouteResult<SessionId> {
    let given: SessionId =
        text.parse().map_err(|error: ipc_protocol::InvalidId| ProblemDetails::usage(error.to_string()))?;
    if manager.session(&given).is_ok() || manager.record(&given).is_ok() {
        return Ok(given);
    }
    let remembered = manager.list_sessions().into_iter().map(|session| session.metadata);
    let remembered = remembered.filter(|session| sees(session.user_id.as_deref())).map(|session| session.session_id);
    let every = SessionFilter { archived: true, ..SessionFilter::default() };
    let recorded = manager.records(&every).into_iter();
    let recorded = recorded.filter(|record| sees(record.config.user_id.as_deref())).map(|record| record.session_id);
    resolve_among(given, remembered.chain(recorded))
}

/// Resolves the beginning of a known id to the id. Text that no id begins with stays as it is.
///
/// # Errors
/// `ambiguous-id` with the candidates.
pub fn resolve_among(given: SessionId, known: impl Iterator<Item = SessionId>) -> Result<SessionId, ProblemDetails> {
    let mut found: Vec<SessionId> = known.filter(|id| id.as_str().starts_with(given.as_str())).collect();
    found.sort_unstable();
    found.dedup();
    if found.len() > 1 {
        let listed: Vec<&str> = found.iter().take(MAX_CANDIDATES).map(SessionId::as_str).collect();
        let more = found.len().saturating_sub(MAX_CANDIDATES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let detail = format!(
            "{given} is the beginning of several ids, {}{more}: write more of the one you mean",
            listed.join(", ")
        );
        return Err(ProblemDetails::new("ambiguous-id", detail));
    }
    Ok(found.pop().unwrap_or(given))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> SessionId {
        text.parse().expect("a valid id")
    }

    #[test]
    fn a_unique_beginning_is_the_id() {
        let known = || ["ab-1", "ab-2", "c", "cd", "ab-1"].map(id).into_iter();
        let resolved = |text: &str| resolve_among(id(text), known()).map(|id| id.to_string());
        assert_eq!(resolved("ab-1"), Ok("ab-1".into()), "listed twice, and one");
        assert_eq!(resolved("cd"), Ok("cd".into()));
        assert_eq!(resolved("x"), Ok("x".into()), "the next call says that there is none");
        let problem = resolved("ab").expect_err("two");
        assert_eq!((problem.kind.as_str(), problem.exit().code()), ("ambiguous-id", 2));
        assert!(problem.detail.contains("ab-1, ab-2: write more"), "{}", problem.detail);
    }

    #[test]
    fn many_candidates_are_not_all_listed() {
        let known = (10..40).map(|n| id(&format!("s-{n}")));
        let detail = resolve_among(id("s-"), known).expect_err("many").detail;
        assert!(detail.contains("s-17 and 22 more"), "{detail}");
    }
}
