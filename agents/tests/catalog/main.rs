//! The catalog: rows from files, their schema, what a row alone says about a start, and the configuration directory.

mod config_dir;
mod files;
mod provisioned;
