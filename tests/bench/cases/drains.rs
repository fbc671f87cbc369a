//! Drains of what waits. Each is compared with another measurement made right before or after it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::eventually::{eventually, when};

use super::Figure;
use crate::Sizes;
use crate::bare::{self, Bare};
use crate::bed::{self, Bed, OUTBOX, QUEUE, Servers};
use crate::drain::{Drain, drain};
use crate::fill::{What, fill};
use crate::progress::Progress;

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn plain(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let (bare, drained) =
        against_bare(servers, sizes, What::Plain(sizes.messages), progress).await?;
    let mut figures = ratio_to_bare(&bare, &drained, 0.75);
    figures.extend([
        Figure::new("worker's highest memory", drained.memory, "MiB").at_most(64.0),
        Figure::new("worker's time a message", drained.worker, "µs"),
        Figure::new("database's time a message", drained.database, "µs"),
        Figure::new("broker's time a message", drained.broker, "µs"),
        Figure::new("bare loop's time a message", bare.client, "µs"),
        Figure::new("broker's time a message, bare", bare.broker, "µs"),
    ]);
    Ok(figures)
}

pub(super) async fn streams(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let what = What::Streams(sizes.messages, sizes.streams);
    let (bare, drained) = against_bare(servers, sizes, what, progress).await?;
    let mut figures = ratio_to_bare(&bare, &drained, 0.6);
    figures.push(Figure::new("worker's time a message", drained.worker, "µs"));
    figures.push(Figure::new(
        "database's time a message",
        drained.database,
        "µs",
    ));
    Ok(figures)
}

async fn against_bare(
    servers: &Servers,
    sizes: &Sizes,
    what: What,
    progress: &Progress,
) -> Result<(Bare, Drain)> {
    let bed = Bed::make(servers).await?;
    fill(&mut bed.connect().await?, what, progress).await?;
    let bare = bare::publish(servers, sizes.messages, progress).await?;
    let drained = drain(servers, &bed, sizes.messages, progress).await?;
    all_is_settled(&bed, sizes.messages).await?;
    Ok((bare, drained))
}

fn ratio_to_bare(bare: &Bare, drained: &Drain, least: f64) -> Vec<Figure> {
    vec![
        Figure::new(
            "rate, to that of the bare loop",
            drained.rate / bare.rate,
            "",
        )
        .at_least(least),
        Figure::new("rate", drained.rate, "/s"),
        Figure::new("rate of the bare loop", bare.rate, "/s"),
        // What the ratio of rates would be if processors were all that counts, however busy others keep them.
        Figure::new(
            "bare loop's processor time, to all of ours",
            (bare.client + bare.broker) / (drained.worker + drained.database + drained.broker),
            "",
        ),
    ]
}

/// Drains messages without a stream, with nothing else about.
async fn undisturbed(servers: &Servers, count: u32, progress: &Progress) -> Result<f64> {
    let bed = Bed::make(servers).await?;
    fill(&mut bed.connect().await?, What::Plain(count), progress).await?;
    let drained = drain(servers, &bed, count, progress).await?;
    all_is_settled(&bed, count).await?;
    Ok(drained.rate)
}

fn ratio_to_undisturbed(disturbed: f64, undisturbed: f64, least: f64) -> Vec<Figure> {
    vec![
        Figure::new(
            "rate, to that of an undisturbed drain",
            disturbed / undisturbed,
            "",
        )
        .at_least(least),
        Figure::new("rate", disturbed, "/s"),
        Figure::new("rate of the undisturbed drain", undisturbed, "/s"),
    ]
}

/// Only the others count; the hot stream itself goes on at one message for each confirm.
pub(super) async fn hot_stream(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let undisturbed = undisturbed(servers, sizes.messages, progress).await?;
    let bed = Bed::make(servers).await?;
    let mut session = bed.connect().await?;
    fill(&mut session, What::Hot(sizes.hot), progress).await?;
    fill(&mut session, What::Plain(sizes.messages), progress).await?;
    let drained = drain(servers, &bed, sizes.messages, progress).await?;
    Ok(ratio_to_undisturbed(drained.rate, undisturbed, 0.8))
}

pub(super) async fn beside_snapshot(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let undisturbed = undisturbed(servers, sizes.messages, progress).await?;
    let bed = Bed::make(servers).await?;
    let mut reader = bed.connect().await?;
    bed::execute(&mut reader, "begin isolation level repeatable read").await?;
    let count = "select count(*) from postroom.outbox";
    let before: i64 = sqlx::query_scalar(count).fetch_one(&mut reader).await?;
    fill(
        &mut bed.connect().await?,
        What::Plain(sizes.messages),
        progress,
    )
    .await?;
    let drained = drain(servers, &bed, sizes.messages, progress).await?;
    let after: i64 = sqlx::query_scalar(count).fetch_one(&mut reader).await?;
    ensure!(before == 0 && after == 0, "the snapshot was not held");
    all_is_settled(&bed, sizes.messages).await?;
    Ok(ratio_to_undisturbed(drained.rate, undisturbed, 0.9))
}

/// The transaction has written a message too, which must go out when it is committed at last.
pub(super) async fn beside_writer(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let undisturbed = undisturbed(servers, sizes.messages, progress).await?;
    let bed = Bed::make(servers).await?;
    let mut writer = bed.connect().await?;
    bed::execute(&mut writer, "begin").await?;
    let late = format!(
        "insert into postroom.outbox (endpoint, type, payload) values ('{OUTBOX}', 'made', '{{}}')"
    );
    bed::execute(&mut writer, &late).await?;
    fill(
        &mut bed.connect().await?,
        What::Plain(sizes.messages),
        progress,
    )
    .await?;
    let drained = drain(servers, &bed, sizes.messages, progress).await?;
    bed::execute(&mut writer, "commit").await?;
    all_is_settled(&bed, sizes.messages + 1)
        .await
        .context("the late commit")?;
    Ok(ratio_to_undisturbed(drained.rate, undisturbed, 0.9))
}

/// A drain that loses or repeats something is worth nothing, however quick it is.
async fn all_is_settled(bed: &Bed, count: u32) -> Result<()> {
    let pool = bed.database.pool(1).await?;
    eventually(
        "the outbox is empty and all is in the queue",
        PATIENCE,
        || async {
            let left = sqlx::query_scalar("select count(*) from postroom.outbox");
            let left: i64 = left.fetch_one(&pool).await.map_err(anyhow::Error::from)?;
            let depth = bed.vhost.depth(QUEUE).await?;
            when(left == 0 && depth == count, || {
                format!("{left} rows are left, the queue holds {depth} of {count}")
            })
            .map_err(anyhow::Error::msg)
        },
    )
    .await
}
