//! Points where a test stops the process, and variants that a test must find broken.
//!
//! Compiled in only with the feature `test-hooks`; without it every function here is a constant.

/// Whether the deliberately broken variant `name` was asked for (`POSTROOM_TEST_BREAK`).
#[cfg(feature = "test-hooks")]
pub fn broken(name: &str) -> bool {
    use std::sync::LazyLock;
    static BROKEN: LazyLock<Option<String>> =
        LazyLock::new(|| std::env::var("POSTROOM_TEST_BREAK").ok());
    BROKEN.as_deref() == Some(name)
}

/// Whether the deliberately broken variant `name` was asked for: never.
#[cfg(not(feature = "test-hooks"))]
pub const fn broken(_name: &str) -> bool {
    false
}

/// Ends the process at once, as a crash does, the nth time it comes to `point`
/// (`POSTROOM_TEST_ABORT=point` or `point:n`).
#[cfg(feature = "test-hooks")]
pub fn abort_at(point: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static WANTED: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
        let text = std::env::var("POSTROOM_TEST_ABORT").ok()?;
        match text.split_once(':') {
            Some((point, n)) => Some((point.to_owned(), n.parse().ok()?)),
            None => Some((text, 1)),
        }
    });
    static PASSED: AtomicU64 = AtomicU64::new(0);
    if let Some((wanted, nth)) = &*WANTED
        && wanted == point
        && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *nth
    {
        std::process::abort();
    }
}

/// Ends the process at a point: never.
#[cfg(not(feature = "test-hooks"))]
pub const fn abort_at(_point: &str) {}

/// Ends the process when a message of the type in `POSTROOM_TEST_ABORT_TYPE` is about to be published.
#[cfg(feature = "test-hooks")]
pub fn abort_at_type(kind: &str) {
    if std::env::var("POSTROOM_TEST_ABORT_TYPE").is_ok_and(|wanted| wanted == kind) {
        std::process::abort();
    }
}

/// Ends the process at a type: never.
#[cfg(not(feature = "test-hooks"))]
pub const fn abort_at_type(_kind: &str) {}
