//! Pages of lists, with a cursor.

use axum::http::{HeaderMap, HeaderValue, header};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{ProblemDetails, requests::RouteResult};

/// Most members of a page.
const MAX_LIMIT: usize = 10_000;

/// Page of a list. Without a limit it is all of the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListPage {
    /// Most members.
    pub(crate) limit: Option<usize>,
    /// Cursor that the page before gave.
    pub(crate) cursor: Option<String>,
    /// True to begin with the greatest.
    pub(crate) descending: bool,
}

impl ListPage {
    /// Returns the key that the page begins after; empty for the first page.
    ///
    /// # Errors
    /// `usage` for a cursor that makes no sense.
    pub(crate) fn after(&self) -> RouteResult<String> {
        self.cursor.as_deref().map(decode).transpose().map(Option::unwrap_or_default)
    }

    /// Sorts a list by a key that no two members share, and keeps the members of the page. Returns the cursor of the next page, if
    /// there is one.
    ///
    /// # Errors
    /// `usage` for a limit or a cursor that makes no sense.
    pub(crate) fn cut<T>(&self, list: &mut Vec<T>, key: impl Fn(&T) -> String) -> RouteResult<Option<String>> {
        if let Some(limit) = self.limit.filter(|limit| !(1..=MAX_LIMIT).contains(limit)) {
            return Err(ProblemDetails::usage(format!("limit is 1 to {MAX_LIMIT}, and {limit} was given")));
        }
        let after = self.cursor.as_deref().map(decode).transpose()?;
        if let Some(after) = after {
            list.retain(|member| if self.descending { key(member) < after } else { key(member) > after });
        }
        list.sort_by_cached_key(&key);
        if self.descending {
            list.reverse();
        }
        let Some(limit) = self.limit.filter(|limit| *limit < list.len()) else { return Ok(None) };
        list.truncate(limit);
        Ok(list.last().map(|last| URL_SAFE_NO_PAD.encode(key(last))))
    }
}

fn decode(cursor: &str) -> RouteResult<String> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| ProblemDetails::usage(format!("cursor {cursor:?} is not from a page: begin without one")))
}

/// Returns the headers that name the next page: `Link: <?…&cursor=…>; rel="next"`, with the rest of the query.
pub(crate) fn next_link(query: &str, next: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let Some(next) = next else { return headers };
    let others: Vec<&str> = query.split('&').filter(|part| !part.is_empty() && !part.starts_with("cursor=")).collect();
    let cursor = format!("cursor={}", utf8_percent_encode(next, NON_ALPHANUMERIC));
    let query = [&others[..], &[cursor.as_str()]].concat().join("&");
    if let Ok(link) = HeaderValue::from_str(&format!("<?{query}>; rel=\"next\"")) {
        headers.insert(header::LINK, link);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(descending: bool) -> Vec<Vec<u32>> {
        let (mut pages, mut cursor) = (Vec::new(), None);
        loop {
            let mut list = vec![3, 1, 4, 2, 5];
            let page = ListPage { limit: Some(2), cursor, descending };
            cursor = page.cut(&mut list, |number| number.to_string()).expect("a page");
            pages.push(list);
            if cursor.is_none() {
                return pages;
            }
        }
    }

    #[test]
    fn each_member_is_on_one_page() {
        assert_eq!(pages(false), [vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(pages(true), [vec![5, 4], vec![3, 2], vec![1]]);
        let mut all = vec![2, 1];
        assert_eq!(ListPage::default().cut(&mut all, u32::to_string), Ok(None));
        assert_eq!(all, [1, 2]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for page in [
            ListPage { limit: Some(0), ..ListPage::default() },
            ListPage { limit: Some(10_001), ..ListPage::default() },
            ListPage { cursor: Some("?".into()), ..ListPage::default() },
        ] {
            assert_eq!(page.cut(&mut vec![1], u32::to_string).expect_err("refused").kind, "usage");
        }
    }

    #[test]
    fn the_next_page_is_a_link() {
        let link =
            |query, next| next_link(query, next).get(header::LINK).map(|link| link.to_str().expect("text").to_owned());
        assert_eq!(
            link("limit=2&cursor=old&agent=pi", Some("a_b")).as_deref(),
            Some("<?limit=2&agent=pi&cursor=a%5Fb>; rel=\"next\"")
        );
        assert_eq!(link("limit=2", None), None);
    }
}
