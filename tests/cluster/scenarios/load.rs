//! A steady load of small transactions, noted in the ledger, while something else happens.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use postroom_tests::ledger::Outcome;
use postroom_tests::setup::OUTBOX;
use sqlx::PgPool;
use uuid::Uuid;

use crate::ground::Ground;

/// Transactions that are open at once.
const PRODUCERS: usize = 4;
/// Streams of each of them.
const STREAMS: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// Runs `work` under load; the load ends with it.
pub(crate) async fn during<T>(ground: &Ground, work: impl Future<Output = Result<T>>) -> Result<T> {
    let pool = ground.pool().await?;
    let stop = AtomicBool::new(false);
    let producers = (0..PRODUCERS).map(|number| produce(ground, &pool, number, &stop));
    let work = async {
        let answer = work.await;
        stop.store(true, Ordering::Relaxed);
        answer
    };
    let (produced, answer) = tokio::join!(try_join_all(producers), work);
    produced?;
    answer
}

async fn produce(ground: &Ground, pool: &PgPool, producer: usize, stop: &AtomicBool) -> Result<()> {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let stream = format!("{producer}-{}", number % STREAMS);
        write(ground, pool, &stream, 2).await?;
        number += 1;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Writes messages of a stream in one transaction.
pub(crate) async fn write(
    ground: &Ground,
    pool: &PgPool,
    stream: &str,
    count: usize,
) -> Result<()> {
    let mut draft = ground.ledger.begin();
    let mut transaction = pool.begin().await.context("begin")?;
    for _ in 0..count {
        let id = Uuid::now_v7();
        let body = format!(r#"{{"order": "{id}"}}"#);
        let sql = "insert into postroom.outbox (endpoint, type, stream, message_id, payload) values ($1, 'placed', $2, $3, $4)";
        sqlx::query(sql)
            .bind(OUTBOX)
            .bind(stream)
            .bind(id)
            .bind(&body)
            .execute(&mut *transaction)
            .await
            .context("insert a message")?;
        draft.wrote(Some(stream), id, body.as_bytes());
    }
    transaction.commit().await.context("commit")?;
    draft.end(Outcome::Committed);
    Ok(())
}
