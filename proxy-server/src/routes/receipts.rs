//! Receipts of a session's ends and suspensions, as its stream has them.

use std::collections::VecDeque;

use axum::extract::{Path, Query};
use proxy_manager::Event;
use serde::Deserialize;

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    api::RecordedReceipt,
    requests::{JsonBody, RouteResult, UrlQuery},
    route_table::api_routes,
};

/// Most receipts of an answer.
const MAX_LIMIT: usize = 1000;

/// Receipts of an answer for which no limit is given.
const DEFAULT_LIMIT: usize = 100;

api_routes! { "Sessions", ApiState;
    /// Lists the receipts of a session's end and of its suspensions, the last one first.
    ///
    /// They come from its stream, over restarts of the server too. The receipt of a kill that ends no session is in the answer to that kill.
    get "/v1/sessions/{id}/receipts" list:
        query::<ReceiptsQuery>() json::<Vec<RecordedReceipt>>(200, "The receipts.") problems(SESSION);
}

/// Query of the receipts.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
struct ReceiptsQuery {
    /// Most receipts: 1 to 1000, 100 by default.
    limit: Option<usize>,
}

async fn list(
    caller: Caller,
    Path(id): Path<String>,
    query: UrlQuery<ReceiptsQuery>,
) -> RouteResult<JsonBody<VecDeque<RecordedReceipt>>> {
    let Query(ReceiptsQuery { limit }) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if limit == 0 || limit > MAX_LIMIT {
        return Err(ProblemDetails::usage(format!("limit is 1 to {MAX_LIMIT}, and {limit} was given")));
    }
    let id = caller.session_id(&id)?;
    // Of a session that goes on, only what exists is read.
    let last = caller.manager.session(&id).ok().map(|session| session.info().last_offset);
    let mut subscription = caller.manager.subscribe_from(&id, 0)?;
    let (mut receipts, mut batch, mut seen) = (VecDeque::new(), Vec::new(), 0);
    while last.is_none_or(|last| seen < last) && subscription.next_batch(&mut batch).await {
        for envelope in batch.drain(..) {
            seen = envelope.offset;
            if let Event::SessionEnded { receipt: Some(receipt), .. }
            | Event::SessionSuspended { receipt: Some(receipt), .. } = &envelope.event
            {
                receipts.truncate(limit - 1);
                receipts.push_front(RecordedReceipt {
                    offset: format!("{:020}", envelope.offset),
                    at: envelope.created_at,
                    kind: envelope.event.kind().into_owned(),
                    receipt: receipt.as_ref().clone(),
                });
            }
        }
    }
    Ok(JsonBody(receipts))
}
