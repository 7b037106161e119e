//! The thinnest child binary: a fork server when a manager starts it, else nothing.

fn main() {
    proxy_child::run_if_child();
}
