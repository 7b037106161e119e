//! The log, from outside.

mod byte_streams;
mod common;
mod faults;
mod groups;
mod immutable;
mod kill;
mod model;
mod old;
mod replicated;
mod shapes;
mod streams;
mod transfer;
