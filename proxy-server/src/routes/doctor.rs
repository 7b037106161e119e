//! Features of this system, tested by use.

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    doctor::DoctorCheck,
    requests::{JsonBody, RouteResult},
    route_table::api_routes,
};

api_routes! { "Server", ApiState;
    /// Tests what this system offers, and names what is missing.
    ///
    /// It starts and ends some sessions of its own, one test of this kind at a time, and leaves nothing.
    get "/v1/doctor" examine:
        json::<Vec<DoctorCheck>>(200, "The checks.") problems(&["unsupported", "deadline", "failed"]);
}

async fn examine(caller: Caller) -> RouteResult<JsonBody<Vec<DoctorCheck>>> {
    match caller.doctor() {
        Some(doctor) => doctor.examine().await.map(JsonBody),
        None => Err(ProblemDetails::new("unsupported", "this server has no checks of its system")),
    }
}
