//! The other service: a queue of its own, an inbox, and a handler that writes an invoice for each order.
//!
//! Invariant: what is sent again is the same message, byte for byte, as a broker or a sender would repeat it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Connection, ConnectionProperties};
use postroom_tests::postgres;
use postroom_tests::received::Received;
use postroom_tests::vhost::{self, QueueArguments};
use sqlx::Executor as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::report::grouped;
use crate::servers::SHOP;
use crate::steps::Steps;

/// The queue that feeds the inbox.
const QUEUE: &str = "billing";
/// One message in so many is sent again on purpose.
const AGAIN: usize = 5;

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// What the other service has in the end.
#[derive(Debug, Default)]
pub(crate) struct Invoices {
    /// Sent again on purpose.
    pub(crate) again: usize,
    /// Invoices that were written.
    pub(crate) written: usize,
    /// Those written for an order that had one already.
    pub(crate) twice: usize,
    /// Those of a customer that were written in another order than the customer's messages arrived in.
    pub(crate) out_of_order: usize,
    /// Messages that wait in the inbox or were given up.
    pub(crate) left: usize,
}

/// Makes the queue; before the workers look for it.
pub(crate) async fn declare(amqp_url: &str) -> Result<()> {
    vhost::declare(amqp_url, SHOP, QUEUE, &QueueArguments::quorum(), "#").await
}

/// Makes table and handler; after the migration, whose type the handler takes.
pub(crate) async fn install(session: &mut PgConnection) -> Result<()> {
    session
        .execute(include_str!("billing.sql"))
        .await
        .context("create the tables and the handler of billing")?;
    Ok(())
}

/// Sends some of what arrived to the inbox again, then waits until nothing waits any more, and counts.
pub(crate) async fn settle(
    steps: &mut Steps,
    database_url: &str,
    amqp_url: &str,
    received: &[Received],
) -> Result<Invoices> {
    let again: Vec<_> = received.iter().step_by(AGAIN).collect();
    send_again(amqp_url, &again).await?;
    steps.note(&format!(
        "sent {} messages to the inbox again",
        grouped(again.len())
    ))?;
    let mut session = postgres::connect(database_url).await?;
    let wanted = received
        .iter()
        .filter_map(Received::id)
        .collect::<HashSet<_>>()
        .len();
    until_handled(steps, &mut session, wanted).await?;
    let mut invoices = count(&mut session, received).await?;
    invoices.again = again.len();
    Ok(invoices)
}

async fn send_again(amqp_url: &str, messages: &[&Received]) -> Result<()> {
    let connection = Connection::connect(amqp_url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let mut confirms = Vec::new();
    for message in messages {
        let publish = channel.basic_publish(
            "".into(),
            QUEUE.into(),
            BasicPublishOptions::default(),
            &message.body,
            message.properties.clone(),
        );
        confirms.push(publish.await?);
    }
    for confirm in confirms {
        confirm.await?;
    }
    connection
        .close(0, "done".into())
        .await
        .context("close the connection")
}

/// Waits until every message has an invoice and the repeats are through: nothing changes for a while.
async fn until_handled(steps: &mut Steps, session: &mut PgConnection, wanted: usize) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    let mut quiet_since = Instant::now();
    let mut before = (-1, -1);
    while quiet_since.elapsed() < Duration::from_secs(2) && Instant::now() < end {
        let sql =
            "select (select count(*) from billing.invoice), (select count(*) from postroom.inbox)";
        let now: (i64, i64) = sqlx::query_as(sql).fetch_one(&mut *session).await?;
        let done = usize::try_from(now.0).unwrap_or_default() >= wanted && now.1 == 0;
        if now != before || !done {
            quiet_since = Instant::now();
        }
        before = now;
        steps.progress(&format!("{} of {wanted} orders have an invoice", now.0))?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn count(session: &mut PgConnection, received: &[Received]) -> Result<Invoices> {
    let written: Vec<(Uuid, String)> =
        sqlx::query_as("select message_id, customer from billing.invoice order by number")
            .fetch_all(&mut *session)
            .await?;
    let left: i64 = sqlx::query_scalar("select (select count(*) from postroom.inbox) + (select count(*) from postroom.dead_letter)")
        .fetch_one(&mut *session)
        .await?;
    let arrived = received
        .iter()
        .filter_map(|message| Some((message.id()?, message.header("x-postroom-stream")?)));
    let (first, twice) = firsts(written.iter().cloned());
    let (expected, _) = firsts(arrived);
    let out_of_order = first
        .iter()
        .filter(|(customer, ids)| expected.get(*customer) != Some(ids));
    Ok(Invoices {
        again: 0,
        written: written.len(),
        twice,
        out_of_order: out_of_order.count(),
        left: usize::try_from(left).unwrap_or(usize::MAX),
    })
}

/// For each customer the messages in the order in which they came first, and how many came again.
fn firsts(messages: impl Iterator<Item = (Uuid, String)>) -> (HashMap<String, Vec<Uuid>>, usize) {
    let mut seen = HashSet::new();
    let mut firsts: HashMap<String, Vec<Uuid>> = HashMap::new();
    let mut again = 0;
    for (id, customer) in messages {
        if seen.insert(id) {
            firsts.entry(customer).or_default().push(id);
        } else {
            again += 1;
        }
    }
    (firsts, again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_arrival_counts_for_the_order() {
        let [a, b] = [1, 2].map(Uuid::from_u128);
        let come = |ids: &[Uuid]| firsts(ids.iter().map(|id| (*id, "c".to_owned())));
        assert_eq!(
            come(&[a, b, a]),
            (HashMap::from([("c".to_owned(), vec![a, b])]), 1)
        );
        assert_ne!(come(&[b, a]).0, come(&[a, b]).0);
    }
}
