//! A child binary that does what it must not: it starts a thread before it is a fork server.

fn main() {
    let thread = std::thread::Builder::new().spawn(|| {
        loop {
            std::thread::park();
        }
    });
    proxy_child::run_if_child();
    drop(thread);
}
