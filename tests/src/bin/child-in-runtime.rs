//! A child binary that does what it must not: it calls `run_if_child` inside a tokio runtime.

#[tokio::main]
async fn main() {
    proxy_child::run_if_child();
}
