//! Code that runs before `main`.

/// Declares that a `fn()` runs before `main`, in each process of the program that this is expanded in.
///
/// Only the main thread exists then. The standard library knows the arguments (glibc passes them to initialisers) and works but for
/// what its own start of `main` does: a broken pipe still ends the process, and a stack overflow is not explained.
#[doc(hidden)]
#[macro_export]
macro_rules! before_main {
    ($function:expr) => {
        const _: () = {
            extern "C" fn run() {
                let function: fn() = $function;
                function()
            }
            // SAFETY: the section holds pointers to functions, which the C library calls once each, in order, before `main`.
            #[used]
            #[unsafe(link_section = ".init_array")]
            static RUN: extern "C" fn() = run;
        };
    };
}
