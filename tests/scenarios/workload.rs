//! Applications that write, in all the shapes that make reading hard, with the ledger of what they did.
//!
//! Everything left to chance comes from one seed, which a failing test shows; `POSTROOM_TEST_SEED` gives it again.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context as _, Result};
use postroom_tests::eventually::eventually;
use postroom_tests::ledger::{Draft, Outcome};
use postroom_tests::postgres;
use postroom_tests::setup::{OUTBOX, Postroom};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor as _};
use uuid::Uuid;

use crate::ground::{PATIENCE, committed};

/// A type, and so a routing key, that has a queue.
pub(crate) const GOOD: &str = "good";
/// A routing key that has none, until [`crate::ground::bind_lost`].
pub(crate) const LOST: &str = "lost";

/// Applications wait while so many messages have not arrived, so that a scenario takes no longer than it must on a slow
/// machine.
const MOST_BEHIND: usize = 500;

/// Numbers by chance, all from one seed.
#[derive(Debug)]
pub(crate) struct Chance(Cell<u64>);

impl Chance {
    /// A new seed, or the given one.
    pub(crate) fn new() -> Self {
        let given = std::env::var("POSTROOM_TEST_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0 >> 16);
        eprintln!("POSTROOM_TEST_SEED={seed}");
        Self(Cell::new(seed))
    }

    fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of 0 to `end` - 1.
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in so many times.
    pub(crate) fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Up to `longest`.
    pub(crate) fn pause(&self, longest: Duration) -> Duration {
        Duration::from_micros(
            self.below(1 + u64::try_from(longest.as_micros()).unwrap_or(u64::MAX - 1)),
        )
    }

    /// A source of its own for one of many tasks.
    fn branch(&self) -> Self {
        Self(Cell::new(self.next()))
    }
}

/// A session, also where the machine is so busy that the first attempts time out.
async fn patient_session(postroom: &Postroom) -> Result<PgConnection> {
    let url = postroom.database.url();
    eventually("a session", PATIENCE, || postgres::connect(url)).await
}

/// A message to write.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Message<'a> {
    /// Its stream, if any.
    pub(crate) stream: Option<&'a str>,
    /// Its type; [`GOOD`] where none is given.
    pub(crate) kind: Option<&'a str>,
    /// A routing key of its own.
    pub(crate) routing_key: Option<&'a str>,
    /// Seconds until it is due.
    pub(crate) due_in: Option<f64>,
    /// Seconds until it expires.
    pub(crate) expires_in: Option<f64>,
}

/// A message of a stream.
pub(crate) fn of(stream: &str) -> Message<'_> {
    Message {
        stream: Some(stream),
        ..Message::default()
    }
}

/// A message of a stream that no queue takes.
pub(crate) fn lost(stream: &str) -> Message<'_> {
    Message {
        routing_key: Some(LOST),
        ..of(stream)
    }
}

/// Inserts a message in the running transaction and notes it as one of `order`.
pub(crate) async fn write(
    session: &mut PgConnection,
    draft: &mut Draft<'_>,
    order: Option<&str>,
    message: Message<'_>,
) -> Result<Uuid> {
    let id = Uuid::new_v4();
    let body = format!("{{\"of\": {:?}, \"id\": \"{id}\"}}", message.stream);
    draft.wrote(order, id, body.as_bytes());
    sqlx::query(
        "insert into postroom.outbox (endpoint, type, message_id, stream, routing_key, payload, available_at, expires_at) \
         values ($1, $2, $3, $4, $5, $6, clock_timestamp() + $7 * interval '1 second', clock_timestamp() + $8 * interval '1 second')",
    )
    .bind(OUTBOX)
    .bind(message.kind.unwrap_or(GOOD))
    .bind(id)
    .bind(message.stream)
    .bind(message.routing_key)
    .bind(body)
    .bind(message.due_in)
    .bind(message.expires_in)
    .execute(session)
    .await?;
    Ok(id)
}

/// Commits messages in one transaction.
pub(crate) async fn commit(
    postroom: &Postroom,
    session: &mut PgConnection,
    messages: &[Message<'_>],
) -> Result<Vec<Uuid>> {
    let mut draft = postroom.ledger.begin();
    session.execute("begin").await?;
    let mut ids = Vec::new();
    for message in messages {
        ids.push(write(session, &mut draft, message.stream, *message).await?);
    }
    session.execute("commit").await?;
    draft.end(Outcome::Committed);
    Ok(ids)
}

/// What a number of applications write at the same time.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// How many of them.
    pub(crate) writers: usize,
    /// Streams; every fifth message has none.
    pub(crate) streams: u64,
    /// The longest pause between two transactions of one of them.
    pub(crate) pause: Duration,
    /// The longest time that a transaction stays open.
    pub(crate) open: Duration,
    /// Savepoints, also rolled back ones, and prepared transactions.
    pub(crate) nested: bool,
    /// One message in so many has a due time shortly ahead, if not 0.
    pub(crate) scheduled: u64,
    /// Half of the messages of one stream have no queue.
    pub(crate) lost: bool,
    /// One message in so many has expired already, if not 0.
    pub(crate) expired: u64,
    /// The whole endpoint has one order.
    pub(crate) total: bool,
    /// The server dies in between: what was committed is also noted in table `written`.
    pub(crate) survives: bool,
}

impl Load {
    /// Ten applications, 40 streams, one transaction in five rolled back.
    pub(crate) fn plain() -> Self {
        Self {
            writers: 10,
            streams: 40,
            pause: Duration::from_millis(60),
            open: Duration::ZERO,
            nested: false,
            scheduled: 0,
            lost: false,
            expired: 0,
            total: false,
            survives: false,
        }
    }

    /// Transactions of all shapes, some of them open for seconds.
    pub(crate) fn rough() -> Self {
        Self {
            writers: 12,
            open: Duration::from_secs(3),
            pause: Duration::from_millis(20),
            nested: true,
            ..Self::plain()
        }
    }

    /// Writes while `act` runs.
    pub(crate) async fn beside<T>(
        &self,
        postroom: &Postroom,
        chance: &Chance,
        act: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let stop = Cell::new(false);
        let writers =
            (0..self.writers).map(|number| self.writer(number, postroom, chance.branch(), &stop));
        let writers = futures::future::try_join_all(writers);
        let act = async {
            let answer = act.await;
            stop.set(true);
            answer
        };
        let (written, answer) = tokio::join!(writers, act);
        let answer = answer?;
        written.context("a writer failed")?;
        Ok(answer)
    }

    /// Writes until so many messages more are committed.
    pub(crate) async fn write(
        &self,
        count: usize,
        postroom: &Postroom,
        chance: &Chance,
    ) -> Result<()> {
        self.beside(postroom, chance, committed(postroom, count))
            .await
    }

    async fn writer(
        &self,
        number: usize,
        postroom: &Postroom,
        chance: Chance,
        stop: &Cell<bool>,
    ) -> Result<()> {
        let mut session = None;
        let mut transactions = 0;
        while !stop.get() {
            if postroom.ledger.committed() > postroom.receiver.distinct() + MOST_BEHIND {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            transactions += 1;
            let name = format!("{}_{number}_{transactions}", postroom.database.name());
            let done = async {
                let session = match &mut session {
                    Some(session) => session,
                    none => none.insert(patient_session(postroom).await?),
                };
                self.transaction(session, postroom, &chance, &name).await
            };
            match done.await {
                Ok(()) => tokio::time::sleep(chance.pause(self.pause)).await,
                Err(_) if self.survives => {
                    session = None;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn transaction(
        &self,
        session: &mut PgConnection,
        postroom: &Postroom,
        chance: &Chance,
        name: &str,
    ) -> Result<()> {
        let mut draft = postroom.ledger.begin();
        session.execute("begin").await?;
        for _ in 0..=chance.below(4) {
            let nested = self.nested && chance.one_in(3);
            let savepoint = draft.savepoint();
            if nested {
                session.execute("savepoint inner_part").await?;
            }
            self.message(session, &mut draft, chance).await?;
            if nested && chance.one_in(3) {
                session.execute("rollback to inner_part").await?;
                draft.rolled_back_to(savepoint);
            }
            if !self.open.is_zero() && chance.one_in(30) {
                let long = chance.one_in(10);
                let longest = if long { self.open } else { self.open / 100 };
                tokio::time::sleep(chance.pause(longest)).await;
            }
        }
        if chance.one_in(5) {
            session.execute("rollback").await?;
            draft.end(Outcome::RolledBack);
            return Ok(());
        }
        if self.nested && chance.one_in(50) {
            let prepare = format!("prepare transaction '{name}'");
            session.execute(AssertSqlSafe(prepare)).await?;
            tokio::time::sleep(chance.pause(self.open / 6)).await;
            let commit = format!("commit prepared '{name}'");
            session.execute(AssertSqlSafe(commit)).await?;
        } else {
            session.execute("commit").await?;
        }
        draft.end(Outcome::Committed);
        Ok(())
    }

    async fn message(
        &self,
        session: &mut PgConnection,
        draft: &mut Draft<'_>,
        chance: &Chance,
    ) -> Result<()> {
        let one_in = |times: u64| times > 0 && chance.one_in(times);
        let number = chance.below(self.streams);
        let stream = format!("stream {number}");
        let stream = (!chance.one_in(5)).then_some(stream.as_str());
        let lost = self.lost && stream.is_some() && number == 0 && chance.one_in(2);
        let message = Message {
            stream,
            kind: None,
            routing_key: lost.then_some(LOST),
            due_in: one_in(self.scheduled).then_some(0.2),
            expires_in: one_in(self.expired).then_some(-1.0),
        };
        let order = if self.total { Some("all") } else { stream };
        let id = write(session, draft, order, message).await?;
        if self.survives {
            sqlx::query("insert into written values ($1)")
                .bind(id)
                .execute(session)
                .await?;
        }
        Ok(())
    }
}
