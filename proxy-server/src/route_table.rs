//! Table of a module's routes: each with its method, path and handler, and with what the OpenAPI document says of it. There is no route
//! without a description.

/// Defines `routes()`, the router of a module's routes, and `describe()`, which adds them to the OpenAPI document.
///
/// ```text
/// api_routes! { "Sessions", ApiState;
///     /// Kills a session, or some of its processes.
///     ///
///     /// Further paragraphs.
///     post "/v1/sessions/{id}/kill" kill: body::<KillRequest>() json::<Receipt>(200, "Receipt.") problems(SESSION);
/// }
/// ```
///
/// The calls after the colon are those of `openapi::RouteDescription`; the names of problem sets are those of `openapi::problem_sets`. Answers
/// that any route gives (no token, a role that is too small, a body that is too long, …) are added to each.
macro_rules! api_routes {
    ($tag:literal, $state:ty; $(
        $(#[doc = $doc:literal])+
        $method:ident $path:literal $handler:ident: $( $call:ident $(::<$of:ty>)? ($($argument:expr),* $(,)?) )+;
    )+) => {
        /// Builds the router of these routes.
        pub(super) fn routes() -> axum::Router<$state> {
            axum::Router::new()$(.route($path, axum::routing::$method($handler)))+
        }

        /// Adds these routes to the document.
        #[cfg(feature = "openapi")]
        pub(super) fn describe(document: &mut crate::openapi::DocumentBuilder) {
            use crate::openapi::problem_sets::*;
            // Not every table names a set.
            let _ = MANAGER;
            $({
                let mut route = document.route($tag, module_path!(), stringify!($handler), stringify!($method), $path);
                route.describe(&[$($doc),+]);
                $(route.$call$(::<$of>)?($($argument),*);)+
                route.finish();
            })+
        }
    };
}

pub(crate) use api_routes;
