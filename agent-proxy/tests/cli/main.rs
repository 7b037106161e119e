//! The built program, driven as a person or a script does.

mod contract;
mod daemon;
mod demo;
mod harness;
mod leaktest;
mod peers;
mod run;
mod sessions;
