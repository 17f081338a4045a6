//! The output of a task: lines on standard output, and nothing else.

/// Prints one line.
#[expect(clippy::print_stdout, reason = "tasks report to a person")]
pub(crate) fn print_line(line: &str) {
    println!("{line}");
}
