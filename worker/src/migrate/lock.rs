//! One migration at a time for each schema.
//!
//! Invariant: the lock belongs to the session, so it goes with it, however the process ends; no row is left behind.

use std::time::{Duration, Instant};

use sqlx::{Executor, Row};

use crate::database::Link;
use crate::reason::{self, Reason};

/// Longest wait.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pause between two tries. A try that waits on the server would hold a snapshot there.
const PAUSE: Duration = Duration::from_millis(250);
/// Time between two messages about the wait.
const BETWEEN_MESSAGES: Duration = Duration::from_secs(10);

const TAKE: &str = "select pg_try_advisory_lock(('x' || substr(encode(sha256(convert_to('postroom migration of ' || $1, 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint)";
const HOLDER: &str = "select format('process %s of role %s%s', l.pid, coalesce(a.usename, '?'), coalesce(' (' || nullif(a.application_name, '') || ' from ' || coalesce(host(a.client_addr), 'a local socket') || ')', '')) \
    from (select ('x' || substr(encode(sha256(convert_to('postroom migration of ' || $1, 'UTF8')), 'hex'), 1, 16))::bit(64)) k(key) \
    join pg_locks l on l.locktype = 'advisory' and l.granted and l.objsubid = 1 \
        and l.database = (select oid from pg_database where datname = current_database()) \
        and l.classid = substring(k.key from 1 for 32)::bit(32)::bigint::oid and l.objid = substring(k.key from 33 for 32)::bit(32)::bigint::oid \
    left join pg_stat_activity a on a.pid = l.pid";

/// Takes the lock, waiting for whoever has it.
pub(super) async fn take(link: &mut Link<'_>, schema: &str) -> Result<(), Reason> {
    let began = Instant::now();
    let mut said = None;
    while !try_take(link, schema)
        .await
        .map_err(|error| reason::of_database(&error))?
    {
        let holder = holder(link, schema)
            .await
            .map_err(|error| reason::of_database(&error))?;
        if began.elapsed() > PATIENCE {
            return Err(Reason::new(
                "LockHeld",
                format!("another migration of schema {schema} has run for {PATIENCE:?}: {holder}"),
                "Wait for it, or end its session with pg_terminate_backend.",
            ));
        }
        if said.is_none_or(|at: Instant| at.elapsed() > BETWEEN_MESSAGES) {
            said = Some(Instant::now());
            tracing::info!(
                "Waiting for another migration of schema {schema}, at most {PATIENCE:?}: {holder}"
            );
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn try_take(link: &mut Link<'_>, schema: &str) -> Result<bool, sqlx::Error> {
    let query = link.query(TAKE).bind(schema.to_owned());
    link.connection.fetch_one(query).await?.try_get(0)
}

async fn holder(link: &mut Link<'_>, schema: &str) -> Result<String, sqlx::Error> {
    let query = link.query(HOLDER).bind(schema.to_owned());
    let row = link.connection.fetch_optional(query).await?;
    row.map_or_else(|| Ok("it is just ending".to_owned()), |row| row.try_get(0))
}
