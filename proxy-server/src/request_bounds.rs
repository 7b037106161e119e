//! Time that an answer may take, and what a client that leaves leaves behind: what it has begun goes on.

use std::time::Duration;

use axum::{
    extract::{MatchedPath, Request},
    http::Method,
    response::{IntoResponse, Response},
};
use tokio::time::timeout;

use crate::{ProblemDetails, access::changes};

/// Time for an answer of a route that waits for nobody. The body of a stream comes later, and has no such end.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(60);

/// Routes whose answer waits for an agent, for a place among the sessions, or for the end of processes. The manager bounds each: by its
/// deadlines, by the clocks of the session, by the grace that the caller gives.
pub(crate) const WAITING_ROUTES: [(&str, &str); 21] = [
    // Some requests to the fleet's engine for each session.
    ("POST", "/v1/fleet/nodes/{node}/forget"),
    ("POST", "/v1/sessions"),
    ("POST", "/v1/resume"),
    ("POST", "/v1/sessions/{id}/resume"),
    ("POST", "/v1/sessions/{id}/take-back"),
    ("POST", "/v1/sessions/{id}/visit"),
    // It may resume the session.
    ("POST", "/v1/sessions/{id}/prompt"),
    // The turn's answer.
    ("POST", "/v1/sessions/{id}/ask"),
    // Some take a request to a model.
    ("POST", "/v1/sessions/{id}/operations"),
    ("POST", "/v1/sessions/{id}/abort"),
    ("POST", "/v1/sessions/{id}/kill"),
    ("DELETE", "/v1/sessions/{id}/processes/{pid}"),
    ("POST", "/v1/sessions/{id}/suspend"),
    ("POST", "/v1/sessions/{id}/hand-over"),
    ("POST", "/v1/fleet/sessions/{id}/move"),
    ("POST", "/v1/fleet/sessions/{id}/take"),
    ("POST", "/v1/fleet/nodes/{node}/drain"),
    ("GET", "/instance/{name}"),
    ("POST", "/instance/{name}/stop"),
    // They go through as much as there is.
    ("GET", "/v1/doctor"),
    ("POST", "/v1/import"),
];

/// Returns true for a route that waits for nobody.
pub(crate) fn is_bounded(method: &Method, path: &str) -> bool {
    !WAITING_ROUTES.iter().any(|(waiting, route)| method.as_str() == *waiting && path.ends_with(route))
}

/// Bounds the time to the beginning of the answer, and carries out what changes something even if its client leaves.
pub(crate) async fn bound<A: Future<Output = Response> + Send + 'static>(
    most: Duration,
    request: Request,
    next: impl FnOnce(Request) -> A,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().map_or_else(|| request.uri().path(), MatchedPath::as_str);
    let (method, path) = (request.method().clone(), path.to_owned());
    let most = is_bounded(&method, &path).then_some(most);
    if !changes(&method, &path) {
        return within(most, &method, &path, next(request)).await;
    }
    // A task of its own: dropping what follows ends no more than the waiting for it.
    let work = tokio::spawn(next(request));
    let work = async {
        work.await
            .unwrap_or_else(|error| ProblemDetails::failed(format!("the work broke off: {error}")).into_response())
    };
    within(most, &method, &path, work).await
}

async fn within(most: Option<Duration>, method: &Method, path: &str, work: impl Future<Output = Response>) -> Response {
    let Some(most) = most else { return work.await };
    timeout(most, work).await.unwrap_or_else(|_| {
        let goes_on = if changes(method, path) { "what it changes is being changed all the same: look" } else { "try" };
        let detail = format!(
            "{method} {path} has no answer within {most:?}: {goes_on} again later, and see `GET /v1/health` for what is wrong"
        );
        ProblemDetails::new("deadline", detail).into_response()
    })
}

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        body::Body,
        http::StatusCode,
        middleware::{Next, from_fn},
        routing,
    };
    use tokio::sync::mpsc;
    use tower::ServiceExt as _;

    use super::*;

    fn request(method: &str, path: &str) -> Request {
        Request::builder().method(method).uri(path).body(Body::empty()).expect("a request")
    }

    /// Serves a route that never answers, one that waits until it is told to go on, and says when each begins and ends.
    fn router(most: Duration) -> (Router, mpsc::Receiver<&'static str>, mpsc::Sender<()>) {
        let (said, hear) = mpsc::channel(8);
        let (go, wait) = mpsc::channel::<()>(1);
        let wait = std::sync::Arc::new(tokio::sync::Mutex::new(wait));
        let work = move || async move {
            said.send("begun").await.expect("heard");
            wait.lock().await.recv().await;
            said.send("done").await.expect("heard");
            StatusCode::NO_CONTENT
        };
        let serve = routing::post(work).get(std::future::pending::<()>);
        let layer = from_fn(move |request, next: Next| bound(most, request, |request| next.run(request)));
        let router = Router::new().fallback_service(serve).layer(layer);
        (router, hear, go)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_come_in_time_is_a_problem() {
        let (router, mut hear, go) = router(ANSWER_TIME);
        let answer = router.clone().oneshot(request("GET", "/v1/sessions")).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
        let answer = router.clone().oneshot(request("POST", "/v1/records/s-1")).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
        go.send(()).await.expect("awaited");
        assert_eq!((hear.recv().await, hear.recv().await), (Some("begun"), Some("done")), "it goes on");
        // One that waits for others has the time that it takes.
        let waiting = tokio::spawn(router.oneshot(request("POST", "/v1/sessions")));
        assert_eq!(hear.recv().await, Some("begun"));
        tokio::time::advance(ANSWER_TIME * 10).await;
        go.send(()).await.expect("awaited");
        assert_eq!(waiting.await.expect("joined").expect("an answer").status(), StatusCode::NO_CONTENT);
    }

    #[tokio::test]
    async fn what_a_client_has_begun_goes_on_without_it() {
        let (router, mut hear, go) = router(ANSWER_TIME);
        let client = tokio::spawn(router.oneshot(request("POST", "/v1/sessions")));
        assert_eq!(hear.recv().await, Some("begun"));
        client.abort();
        client.await.expect_err("it has left");
        go.send(()).await.expect("awaited");
        assert_eq!(hear.recv().await, Some("done"));
    }
}
