//! Ids of sessions in requests: whole ones, and unique beginnings of those that were minted.

use proxy_manager::{ProxyManager, SessionFilter, SessionId};

use crate::{ProblemDetails, requests::RouteResult};

/// Number of candidates that an error lists.
pub(crate) const MAX_CANDIDATES: usize = 8;

/// Resolves an id, or the beginning of a minted one of a session that is seen, to the id. Text that none begins with stays as it is: the
/// call that follows says that there is no such session.
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

/// Resolves the beginning of a known id that was minted to the id. Text that none begins with stays as it is: `job-1` never means `job-10`.
///
/// # Errors
/// `ambiguous-id` with the candidates.
pub fn resolve_among(given: SessionId, known: impl Iterator<Item = SessionId>) -> Result<SessionId, ProblemDetails> {
    let mut found: Vec<SessionId> =
        known.filter(|id| id.is_minted() && id.as_str().starts_with(given.as_str())).collect();
    found.sort_unstable();
    found.dedup();
    if found.len() > 1 {
        let more = found.len().saturating_sub(MAX_CANDIDATES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        return Err(ambiguous_id(given.as_str(), found.iter().map(SessionId::as_str), &more));
    }
    Ok(found.pop().unwrap_or(given))
}

/// Creates the problem of a beginning that several ids have. `more` tells of those that are not listed.
pub(crate) fn ambiguous_id<'a>(given: &str, found: impl Iterator<Item = &'a str>, more: &str) -> ProblemDetails {
    let listed: Vec<&str> = found.take(MAX_CANDIDATES).collect();
    let detail =
        format!("{given} is the beginning of several ids, {}{more}: write more of the one you mean", listed.join(", "));
    ProblemDetails::new("ambiguous-id", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> SessionId {
        text.parse().expect("a valid id")
    }

    /// As if it was minted.
    fn minted(beginning: &str) -> String {
        format!("{beginning:0<8}-cb51-7c4e-8f3a-0123456789ab")
    }

    #[test]
    fn a_unique_beginning_is_the_id() {
        let (one, two) = (minted("ab1"), minted("ab2"));
        let known = || [&*one, &*two, "c", "cd", &*one].map(id).into_iter();
        let resolved = |text: &str| resolve_among(id(text), known()).map(|id| id.to_string());
        assert_eq!(resolved("ab1"), Ok(one.clone()), "listed twice, and one");
        assert_eq!(resolved(&two), Ok(two.clone()));
        assert_eq!(resolved("x"), Ok("x".into()), "the next call says that there is none");
        let problem = resolved("ab").expect_err("two");
        assert_eq!((problem.kind.as_str(), problem.exit().code()), ("ambiguous-id", 2));
        assert!(problem.detail.contains(&format!("{one}, {two}: write more")), "{}", problem.detail);
    }

    /// Whoever kills `job-1`, which is gone, does not mean `job-10`.
    #[test]
    fn the_beginning_of_a_chosen_id_is_another_id() {
        let known = || ["job-1x", "job-10"].map(id).into_iter();
        for text in ["job-1", "job-", "j"] {
            assert_eq!(resolve_among(id(text), known()), Ok(id(text)));
        }
    }

    #[test]
    fn many_candidates_are_not_all_listed() {
        let known = (10..40).map(|n| id(&minted(&format!("a{n}"))));
        let detail = resolve_among(id("a"), known).expect_err("many").detail;
        assert!(detail.contains(&format!("{} and 22 more", minted("a17"))), "{detail}");
    }
}
