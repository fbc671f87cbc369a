//! Functions that exist once for each direction do the same for both.

use anyhow::{Result, ensure};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::inboxes::start;
use crate::sql::{Holding, Key, array, arrays, claim_one, count, one, rows, run};

const WORKER: Uuid = Uuid::from_u128(1);

/// A direction: its table, its endpoint, and how a completion is called there.
#[derive(Debug, Clone, Copy)]
struct Side {
    table: &'static str,
    endpoint: &'static str,
    complete: &'static str,
    fetch: &'static str,
}

const SIDES: [Side; 2] = [
    Side {
        table: "outbox",
        endpoint: "orders",
        complete: "complete_outbox_published",
        fetch: "fetch_outbox_batch",
    },
    Side {
        table: "inbox",
        endpoint: "payments",
        complete: "complete_inbox_handled",
        fetch: "fetch_inbox_batch",
    },
];

impl Side {
    /// Messages with these bodies in one stream.
    async fn put(self, session: &mut PgConnection, bodies: &[&str]) -> Result<()> {
        for body in bodies {
            run(session, &format!("insert into {} (endpoint, type, stream, payload) values ('{}', 'a', 's', '{body}')", self.table, self.endpoint)).await?;
        }
        Ok(())
    }

    async fn keys(self, session: &mut PgConnection) -> Result<Vec<Key>> {
        let sql = format!(
            "select partition, o.xact::text::bigint, id, message_id from {} o where endpoint = '{}' order by o.xact, id",
            self.table, self.endpoint
        );
        let found: Vec<(i16, i64, i64, Uuid)> = rows(session, &sql).await?;
        let key = |(partition, xact, id, message_id)| Key {
            partition,
            xact,
            id,
            message_id,
        };
        Ok(found.into_iter().map(key).collect())
    }

    /// Kind and body of what a reader of all partitions with its cursors at the beginning gets.
    async fn fetched(
        self,
        session: &mut PgConnection,
        bodies: bool,
    ) -> Result<Vec<(i16, Option<String>)>> {
        let all = |kind: &str, value: i64| array(kind, std::iter::repeat_n(value, 64));
        let sql = format!(
            "select kind, convert_from(body, 'UTF8') from {}('{}', {}, {}, {}, '{{}}', 100, 100000, {bodies}) where kind > 0",
            self.fetch,
            self.endpoint,
            array("smallint", 0..64),
            all("pg_catalog.xid8", 0),
            all("bigint", 0)
        );
        rows(session, &sql).await
    }

    /// Deleted, lost and freed partitions.
    async fn complete(
        self,
        session: &mut PgConnection,
        keys: &[Key],
        held: &Holding,
    ) -> Result<(i64, Vec<i16>, Vec<i16>)> {
        let arguments = arrays(keys, |partition| held.epoch(partition));
        let sql = format!(
            "select deleted, lost_partitions, freed_partitions from {}('{WORKER}', '{}', {arguments})",
            self.complete, self.endpoint
        );
        Ok(rows(session, &sql).await?.remove(0))
    }

    /// How many were deferred.
    async fn defer(
        self,
        session: &mut PgConnection,
        keys: &[Key],
        held: &Holding,
        delay: &str,
    ) -> Result<i64> {
        let same = |kind: &str, value: &str| array(kind, keys.iter().map(|_| value));
        one(
            session,
            &format!(
                "select deferred from defer_messages('{WORKER}', '{}', {}, {}, {}, {}, {}, {})",
                self.endpoint,
                arrays(keys, |partition| held.epoch(partition)),
                same("interval", delay),
                same("boolean", "true"),
                same("boolean", "true"),
                same("text", "R"),
                same("text", "e")
            ),
        )
        .await
    }

    /// How many were buried.
    async fn bury(self, session: &mut PgConnection, keys: &[Key], held: &Holding) -> Result<i64> {
        let same = |kind: &str, value: &str| array(kind, keys.iter().map(|_| value));
        one(
            session,
            &format!(
                "select buried from bury_messages('{WORKER}', '{}', {}, {}, {}, {})",
                self.endpoint,
                arrays(keys, |partition| held.epoch(partition)),
                same("boolean", "true"),
                same("text", "R"),
                same("text", "e")
            ),
        )
        .await
    }
}

fn read(kind: i16, body: &str) -> (i16, Option<String>) {
    (kind, Some(body.to_owned()))
}

/// W-71, W-T3, W-28, W-29: in order, only while nothing earlier waits; deleted once, unknown ones are no mistake.
#[tokio::test]
async fn both_directions_are_read_in_order_and_completed_once() -> Result<()> {
    let schema = start("twins_read").await?;
    let mut session = schema.connect().await?;
    for side in SIDES {
        let held = claim_one(&mut session, WORKER, "1 hour", side.endpoint).await?;
        side.put(&mut session, &["1", "2", "3"]).await?;
        ensure!(
            side.fetched(&mut session, true).await? == [read(2, "1"), read(2, "2"), read(2, "3")],
            "{side:?}"
        );
        ensure!(
            side.fetched(&mut session, false)
                .await?
                .iter()
                .all(|(kind, body)| *kind == 2 && body.is_none()),
            "bodies stay: {side:?}"
        );
        let keys = side.keys(&mut session).await?;
        ensure!(side.defer(&mut session, &keys[..1], &held, "1 h").await? == 1);
        ensure!(
            side.fetched(&mut session, true)
                .await?
                .iter()
                .all(|(kind, _)| *kind == 4),
            "the stream waits: {side:?}"
        );
        run(
            &mut session,
            "update deferral set due_at = clock_timestamp()",
        )
        .await?;
        ensure!(
            side.fetched(&mut session, true)
                .await?
                .contains(&read(2, "1")),
            "due: {side:?}"
        );
        let (deleted, lost, freed) = side.complete(&mut session, &keys[..2], &held).await?;
        ensure!(
            (deleted, lost, freed) == (2, vec![], vec![keys[0].partition]),
            "{side:?}"
        );
        ensure!(
            side.complete(&mut session, &keys, &held).await?.0 == 1,
            "the known one of a mixture"
        );
        ensure!(
            side.complete(&mut session, &keys, &held).await?.0 == 0
                && side.complete(&mut session, &[], &held).await?.0 == 0
        );
        ensure!(
            count(&mut session, side.table).await? + count(&mut session, "deferral").await? == 0
        );
    }
    Ok(())
}

/// W-80, W-84, F08, G-04: what fails is deferred, then buried whole, with its direction; under an old epoch neither.
#[tokio::test]
async fn both_directions_defer_and_bury_only_under_the_epoch_that_holds() -> Result<()> {
    let schema = start("twins_settle").await?;
    let mut session = schema.connect().await?;
    for side in SIDES {
        let held = claim_one(&mut session, WORKER, "1 hour", side.endpoint).await?;
        side.put(&mut session, &["1", "2"]).await?;
        let keys = side.keys(&mut session).await?;
        let head = &keys[..1];
        let old = Holding {
            epochs: held.epochs.iter().map(|epoch| epoch - 1).collect(),
            ..held.clone()
        };
        ensure!(
            side.defer(&mut session, head, &old, "1 h").await? == 0
                && side.bury(&mut session, head, &old).await? == 0,
            "{side:?}"
        );
        ensure!(side.complete(&mut session, &[], &old).await?.0 == 0);
        for _ in 0..2 {
            ensure!(side.defer(&mut session, head, &held, "1 h").await? == 1);
        }
        ensure!(
            count(
                &mut session,
                "deferral where attempts = 2 and blocking and due_at > now() + interval '59 min'"
            )
            .await?
                == 1
        );
        ensure!(
            side.bury(&mut session, head, &held).await? == 1
                && side.bury(&mut session, head, &held).await? == 0
        );
        let dead: Vec<(String, i32, String, Uuid)> = rows(&mut session, &format!("select direction, attempts, payload, buried_by from dead_letter where endpoint = '{}'", side.endpoint)).await?;
        let direction = if side.table == "outbox" {
            "Outbox"
        } else {
            "Inbox"
        };
        ensure!(
            dead == [(direction.to_owned(), 3, "1".to_owned(), WORKER)],
            "{dead:?}"
        );
        ensure!(
            side.fetched(&mut session, true).await? == [read(2, "2")],
            "its stream is free: {side:?}"
        );
        let (deleted, lost, _) = side.complete(&mut session, &keys[1..], &old).await?;
        ensure!(
            (deleted, lost) == (1, vec![keys[1].partition]),
            "it was done, whoever says so, and the loss is told: {side:?}"
        );
    }
    Ok(())
}

/// W-T7: the views tell of inboxes as of outboxes.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, step by step")]
async fn the_views_and_the_explanation_tell_of_both_directions() -> Result<()> {
    let schema = start("twins_views").await?;
    let mut session = schema.connect().await?;
    let backlog = "select pending, deferred, parked, dead from backlog where endpoint =";
    for side in SIDES {
        let held = claim_one(&mut session, WORKER, "1 hour", side.endpoint).await?;
        side.put(&mut session, &["1", "2", "3"]).await?;
        let keys = side.keys(&mut session).await?;
        side.defer(&mut session, &keys[..1], &held, "1 h").await?;
        let line: Vec<(i64, i64, i64, i64)> =
            rows(&mut session, &format!("{backlog} '{}'", side.endpoint)).await?;
        ensure!(line == [(0, 1, 2, 0)], "{side:?}: {line:?}");
        ensure!(count(&mut session, &format!("blocked_stream where endpoint = '{}' and stream = 's' and parked = 2 and attempts = 1", side.endpoint)).await? == 1);
        let said = async |session: &mut PgConnection, key: &Key| -> Result<String> {
            one(
                session,
                &format!("select explain_message('{}')", key.message_id),
            )
            .await
        };
        ensure!(
            said(&mut session, &keys[0])
                .await?
                .contains(&format!("{} '{}'", side.table, side.endpoint))
        );
        ensure!(
            said(&mut session, &keys[1])
                .await?
                .contains("parked behind")
        );
        side.bury(&mut session, &keys[..1], &held).await?;
        let line: Vec<(i64, i64, i64, i64)> =
            rows(&mut session, &format!("{backlog} '{}'", side.endpoint)).await?;
        ensure!(line == [(2, 0, 0, 1)], "{side:?}: {line:?}");
        let verb = if side.table == "outbox" {
            "published"
        } else {
            "handled"
        };
        ensure!(
            said(&mut session, &keys[1])
                .await?
                .contains(&format!("waiting to be {verb}, or being {verb} now"))
        );
        ensure!(said(&mut session, &keys[0]).await?.contains("was given up"));
        ensure!(
            count(
                &mut session,
                &format!(
                    "dead_letter_summary where endpoint = '{}' and messages = 1",
                    side.endpoint
                )
            )
            .await?
                == 1
        );
        ensure!(
            count(
                &mut session,
                &format!(
                    "lease_holder where endpoint = '{}' and alive",
                    side.endpoint
                )
            )
            .await?
                == 64
        );
    }
    ensure!(
        count(
            &mut session,
            "lease_holder where endpoint = 'payments' and partition = -1 and owner is null"
        )
        .await?
            == 1,
        "the right to receive is shown too"
    );
    run(
        &mut session,
        "insert into inbox (endpoint, type, payload) values ('tasks', 'a', 'mine')",
    )
    .await?;
    let said: String = one(
        &mut session,
        "select explain_message(message_id::text) from inbox where endpoint = 'tasks'",
    )
    .await?;
    ensure!(
        said.contains("waiting for an application to take it with take_inbox"),
        "{said}"
    );
    Ok(())
}
