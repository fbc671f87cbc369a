//! A small shop. Every order is a business row and an outbox row in one transaction; one in five is rolled back.
//!
//! Invariant: the ledger learns of a message before anybody can receive it as committed, and of every end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use postroom_tests::ledger::{Draft, Ledger, Outcome};
use sqlx::PgPool;
use sqlx::postgres::PgConnection;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Customers at the till: quick transactions.
const QUICK: usize = 6;
/// Customers who take up to two seconds between the order and its commit, while others commit later orders.
const SLOW: usize = 4;
/// Customers who press the button twice.
const TWICE: usize = 1;
/// Sessions with the database that all of them need.
pub(crate) const SESSIONS: u32 = (QUICK + SLOW + TWICE) as u32;

const CUSTOMERS: u128 = 40;

/// What has happened so far.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// All transactions.
    pub(crate) ledger: Ledger,
    /// When the commit of a message returned.
    committed_at: Mutex<HashMap<Uuid, Instant>>,
    /// Orders sent twice with one key, and those of them that were stored once.
    sent_twice: AtomicUsize,
    stored_once: AtomicUsize,
}

impl Books {
    pub(crate) fn committed_at(&self) -> MutexGuard<'_, HashMap<Uuid, Instant>> {
        self.committed_at
            .lock()
            .expect("no panic while a time is noted")
    }

    /// How many orders were sent twice, and how many of those were stored once.
    pub(crate) fn twice(&self) -> (usize, usize) {
        let read = |number: &AtomicUsize| number.load(Ordering::Relaxed);
        (read(&self.sent_twice), read(&self.stored_once))
    }
}

/// Opens the shop until `closing`; returns once every transaction has ended.
pub(crate) async fn open(pool: PgPool, books: Arc<Books>, closing: Instant) -> Result<()> {
    let mut customers = JoinSet::new();
    for number in 0..QUICK + SLOW + TWICE {
        let till = Till {
            pool: pool.clone(),
            books: Arc::clone(&books),
        };
        customers.spawn(async move {
            while Instant::now() < closing {
                match number {
                    0..QUICK => till.quick().await?,
                    QUICK.. if number < QUICK + SLOW => till.slow(closing).await?,
                    _ => till.twice().await?,
                }
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(ended) = customers.join_next().await {
        ended.context("a customer of the shop panicked")??;
    }
    Ok(())
}

struct Till {
    pool: PgPool,
    books: Arc<Books>,
}

/// One order.
struct Order {
    id: Uuid,
    customer: String,
    total: i32,
    body: String,
}

impl Order {
    fn new() -> Self {
        let id = Uuid::now_v7();
        let customer = format!("customer-{}", below(CUSTOMERS));
        let total = i32::try_from(1 + below(500)).unwrap_or(1);
        let body = format!(r#"{{"order": "{id}", "customer": "{customer}", "total": {total}}}"#);
        Self {
            id,
            customer,
            total,
            body,
        }
    }

    async fn insert(&self, transaction: &mut PgConnection) -> Result<()> {
        // A second try with the same key finds the row of the first.
        sqlx::query("insert into orders (order_id, customer, total) values ($1, $2, $3) on conflict do nothing")
            .bind(self.id)
            .bind(&self.customer)
            .bind(self.total)
            .execute(transaction)
            .await
            .context("insert an order")
            .map(drop)
    }
}

impl Till {
    /// Up to three orders in one transaction, by plain INSERT.
    async fn quick(&self) -> Result<()> {
        let mut transaction = Transaction::begin(self).await?;
        for _ in 0..=below(3) {
            transaction.order().await?;
        }
        transaction.end().await?;
        pause(10, 60).await;
        Ok(())
    }

    /// Number and position are drawn now, the commit comes later than those of many others.
    async fn slow(&self, closing: Instant) -> Result<()> {
        let mut transaction = Transaction::begin(self).await?;
        transaction.order().await?;
        let longest = closing.saturating_duration_since(Instant::now());
        tokio::time::sleep(Duration::from_millis(300 + below_u64(1_700)).min(longest)).await;
        transaction.order().await?;
        transaction.end().await.map(drop)
    }

    /// The same order twice with one key, each time in a transaction of its own. The first may be rolled back.
    async fn twice(&self) -> Result<()> {
        let order = Order::new();
        let first = self.enqueue(&order).await?;
        let second = self.enqueue(&order).await?;
        self.books.sent_twice.fetch_add(1, Ordering::Relaxed);
        let once = if first.committed {
            !second.new && second.id == first.id
        } else {
            second.new
        };
        self.books
            .stored_once
            .fetch_add(usize::from(once), Ordering::Relaxed);
        pause(30, 90).await;
        Ok(())
    }

    /// Sends an order with its id as the key.
    async fn enqueue(&self, order: &Order) -> Result<Sent> {
        let mut transaction = Transaction::begin(self).await?;
        order.insert(&mut transaction.session).await?;
        let sql = "select message_id, outcome from postroom.enqueue('orders', 'order.placed', $1, stream => $2, key => $3)";
        let (id, outcome): (Uuid, String) = sqlx::query_as(sql)
            .bind(&order.body)
            .bind(&order.customer)
            .bind(order.id.to_string())
            .fetch_one(&mut *transaction.session)
            .await
            .context("enqueue an order")?;
        let new = outcome == "Enqueued";
        if new {
            transaction.wrote(order, id);
        }
        let committed = transaction.end().await?;
        Ok(Sent { id, new, committed })
    }
}

/// What became of an order that was sent with a key: what the receipt says, and how its transaction ended.
struct Sent {
    id: Uuid,
    new: bool,
    committed: bool,
}

/// A transaction of the database and of the ledger.
struct Transaction<'a> {
    books: &'a Books,
    draft: Draft<'a>,
    session: sqlx::Transaction<'static, sqlx::Postgres>,
    messages: Vec<Uuid>,
}

impl<'a> Transaction<'a> {
    async fn begin(till: &'a Till) -> Result<Self> {
        // The pool has a session for everybody, so nobody waits for one after the draft has begun.
        let draft = till.books.ledger.begin();
        let session = till.pool.begin().await.context("begin a transaction")?;
        Ok(Self {
            books: &till.books,
            draft,
            session,
            messages: Vec::new(),
        })
    }

    async fn order(&mut self) -> Result<()> {
        let order = Order::new();
        order.insert(&mut self.session).await?;
        let sql = "insert into postroom.outbox (endpoint, type, stream, message_id, payload) values ('orders', 'order.placed', $1, $2, $3)";
        sqlx::query(sql)
            .bind(&order.customer)
            .bind(order.id)
            .bind(&order.body)
            .execute(&mut *self.session)
            .await
            .context("insert a message")?;
        self.wrote(&order, order.id);
        Ok(())
    }

    fn wrote(&mut self, order: &Order, id: Uuid) {
        self.draft
            .wrote(Some(&order.customer), id, order.body.as_bytes());
        self.messages.push(id);
    }

    /// Commits four times out of five; answers whether.
    async fn end(self) -> Result<bool> {
        if below(5) == 0 {
            self.session.rollback().await.context("roll back")?;
            self.draft.end(Outcome::RolledBack);
            return Ok(false);
        }
        self.session.commit().await.context("commit")?;
        let now = Instant::now();
        self.draft.end(Outcome::Committed);
        let mut times = self.books.committed_at();
        times.extend(self.messages.into_iter().map(|id| (id, now)));
        Ok(true)
    }
}

async fn pause(least: u64, most: u64) {
    tokio::time::sleep(Duration::from_millis(least + below_u64(most - least))).await;
}

/// A random number below `limit`.
fn below(limit: u128) -> u128 {
    Uuid::new_v4().as_u128() % limit
}

fn below_u64(limit: u64) -> u64 {
    u64::try_from(below(u128::from(limit))).unwrap_or(0)
}
