//! Takes steps, each with a deadline, and again where others were in the way.
//!
//! Invariant: after a step the session has no open transaction, or is not used again.

use std::future::Future;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::timeout;

use super::script::Step;
use crate::database::Link;
use crate::reason::{self, Reason};

/// Deadline of what only looks.
pub(super) const LOOK: Duration = Duration::from_secs(30);
/// Tries of a step whose locks others hold.
const TRIES: u32 = 6;
/// Pause after the first such try; it grows with each.
const PAUSE: Duration = Duration::from_secs(1);

/// Takes a step; again, after a pause, where others held what it had to lock.
pub(super) async fn execute(link: &mut Link<'_>, step: &Step) -> Result<(), Reason> {
    for attempt in 1..=TRIES {
        match once(link, step).await? {
            None => return Ok(()),
            Some(_) if attempt == TRIES => break,
            Some(why) => {
                tracing::warn!(
                    "Step '{}' did not get its locks ({why}); try {attempt} of {TRIES}",
                    step.title
                );
                tokio::time::sleep(PAUSE * attempt).await;
            }
        }
    }
    Err(Reason::new(
        "LockTimeout",
        format!(
            "step '{}' did not get its locks in {TRIES} tries",
            step.title
        ),
        "Look in pg_stat_activity for long transactions on the schema, then run the migration again; it goes on where it stopped.",
    ))
}

/// One try; answers why it was blocked.
async fn once(link: &mut Link<'_>, step: &Step) -> Result<Option<String>, Reason> {
    let work = sqlx::raw_sql(AssertSqlSafe(step.sql.as_str())).execute(&mut *link.connection);
    let error = match timeout(step.deadline, work).await {
        Err(_) => return Err(Reason::timeout("the database", step.deadline)),
        Ok(Ok(_)) => return Ok(None),
        Ok(Err(error)) => error,
    };
    let sqlx::Error::Database(answer) = &error else {
        return Err(reason::of_database(&error));
    };
    within(LOOK, link.connection.execute("rollback")).await?;
    if is_blocked(answer.as_ref()) {
        return Ok(Some(answer.message().to_owned()));
    }
    let mut reason = reason::of_database(&error);
    reason.message = format!(
        "step '{}' failed and was undone: {}",
        step.title, reason.message
    );
    if reason.code == "PermissionDenied" {
        reason.next_step =
            "Migrate with a login that may do this, such as the owner of the database.";
    }
    Err(reason)
}

/// Others were at the same objects: a lock was not had in time, a circle was broken, or the catalogue changed underneath.
fn is_blocked(answer: &dyn DatabaseError) -> bool {
    match answer.code().as_deref() {
        Some("55P03" | "40P01") => true,
        Some("XX000") => answer.message().starts_with("tuple concurrently"),
        _ => false,
    }
}

/// The answer of the database, within a time.
pub(super) async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Reason> {
    match timeout(deadline, work).await {
        Err(_) => Err(Reason::timeout("the database", deadline)),
        Ok(answer) => answer.map_err(|error| reason::of_database(&error)),
    }
}
