//! The fake agent as a program of its own.

fn main() {
    let reexec = vec!["/proc/self/exe".to_owned()];
    std::process::exit(fake_agent::run(fake_agent::Config { reexec }, std::env::args().skip(1)));
}
