//! SQL handlers: the effect of a message, once, in the order of its stream, together with its end.

use std::time::Duration;

use anyhow::{Result, ensure};
use postroom_tests::eventually::{eventually, when};
use serde_json::{Value, json};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::ground::PATIENCE;
use crate::handling_ground::{
    Handling, accept, all_settled, effects, message, numbered, require_once_and_in_order,
};
use crate::sql::{count, one, rows, run, until};

/// L-T14, T-24, W-79: two workers, 1,000 messages in 20 streams and 200 of none.
#[tokio::test]
async fn every_message_has_one_effect_in_the_order_of_its_stream() -> Result<()> {
    let handling = Handling::start("handled", |inbox| inbox).await?;
    let (_one, _two) = (handling.worker().await?, handling.worker().await?);
    let mut session = handling.connect().await?;
    let mut ids = Vec::new();
    for batch in 0..20 {
        ids.extend(
            accept(
                &mut session,
                &numbered("plain", batch * 50..(batch + 1) * 50, 20),
            )
            .await?,
        );
    }
    let loose: Vec<_> = (0..200).map(|n| message("plain", None, n)).collect();
    ids.extend(accept(&mut session, &loose).await?);
    all_settled(&mut session).await?;
    require_once_and_in_order(&mut session, &ids).await
}

/// L-T2, L-T3, L-T4, L-T13, L-26: an application that sends a command again gets the first receipt, also after it was handled.
#[tokio::test]
async fn a_command_sent_again_is_known_even_after_it_was_handled() -> Result<()> {
    let handling = Handling::start("known", |inbox| inbox).await?;
    let mut session = handling.connect().await?;
    let command =
        |tenant: &str| json!({"type": "plain", "payload": "1", "key": "IDEM-A", "tenant": tenant});
    let outcomes = async |session: &mut PgConnection, messages: Value| -> Result<Vec<String>> {
        let query = sqlx::query_scalar(
            "select outcome from postroom.store_inbox_messages('payments', $1) order by slot",
        );
        Ok(query.bind(messages).fetch_all(session).await?)
    };
    let first = outcomes(
        &mut session,
        json!([command("T"), command("T"), command("U")]),
    )
    .await?;
    ensure!(
        first == ["Accepted", "AlreadyAccepted", "Accepted"],
        "{first:?}"
    );
    let _worker = handling.worker().await?;
    all_settled(&mut session).await?;
    let again = outcomes(&mut session, json!([command("T"), command(" ")])).await?;
    ensure!(again == ["AlreadyAccepted", "Accepted"], "{again:?}");
    all_settled(&mut session).await?;
    ensure!(count(&mut session, "app.effect").await? == 3);
    let strict = "select * from postroom.store_inbox_messages('payments', '[{\"type\": \"plain\", \"payload\": \"1\", \"key\": \"IDEM-A\", \"tenant\": \"T\", \"conflict\": \"strict\"}]')";
    ensure!(crate::sql::refused(&mut session, strict).await?.code == "PR001");
    let other = "select * from postroom.store_inbox_messages('payments', '[{\"type\": \"plain\", \"payload\": \"2\", \"key\": \"IDEM-A\", \"tenant\": \"T\"}]')";
    ensure!(crate::sql::refused(&mut session, other).await?.code == "PR002");
    Ok(())
}

/// G3, trap 6: a message that fails holds up its own stream and nobody else's; at the limit it is given up and the stream goes on.
#[tokio::test]
async fn a_failing_message_holds_up_its_stream_until_it_is_given_up() -> Result<()> {
    let handling = Handling::start("fails", |inbox| inbox.with("retry.maxAttempts", 3)).await?;
    let mut session = handling.connect().await?;
    let bad = accept(&mut session, &[message("fails", Some("a"), 0)]).await?;
    let mut good = accept(
        &mut session,
        &[
            message("plain", Some("a"), 1),
            message("plain", Some("b"), 2),
        ],
    )
    .await?;
    let _worker = handling.worker().await?;
    until(
        &mut session,
        "select exists (select from app.effect where stream = 'b')",
    )
    .await?;
    until(
        &mut session,
        "select exists (select from postroom.blocked_stream where parked = 1)",
    )
    .await?;
    all_settled(&mut session).await?;
    good.sort();
    ensure!(
        effects(&mut session).await?.into_iter().collect::<Vec<_>>()
            == good.iter().map(|id| (*id, 1)).collect::<Vec<_>>()
    );
    let dead: Vec<(Uuid, String, String, i32)> = rows(
        &mut session,
        "select message_id, reason, error, attempts from postroom.dead_letter",
    )
    .await?;
    ensure!(
        dead == [(
            bad[0],
            "HandlerFailed".to_owned(),
            "P0001: cannot do 0".to_owned(),
            3
        )],
        "{dead:?}"
    );
    Ok(())
}

/// The words of the contract: PR100 dead at once, PR101 tried again when it says, PR102 waits for a handler that knows it (F26)
/// without being counted.
#[tokio::test]
async fn a_handler_says_what_is_to_become_of_its_message() -> Result<()> {
    let handling = Handling::start("words", |inbox| {
        inbox
            .with("retry.maxAttempts", 2)
            .with("retry.initialDelaySeconds", 60)
            .with("retry.maxDelaySeconds", 60)
    })
    .await?;
    let mut session = handling.connect().await?;
    let ids = accept(
        &mut session,
        &[
            message("never", Some("a"), 0),
            message("later", Some("b"), 1),
            message("new", Some("c"), 2),
        ],
    )
    .await?;
    let worker = handling.worker().await?;
    until(
        &mut session,
        "select exists (select from app.effect where stream = 'b')",
    )
    .await?;
    let dead: Vec<(Uuid, String, i32)> = rows(
        &mut session,
        "select message_id, reason, attempts from postroom.dead_letter",
    )
    .await?;
    ensure!(
        dead == [(ids[0], "HandlerRefused".to_owned(), 1)],
        "{dead:?}"
    );
    until(&mut session, "select exists (select from postroom.deferral where reason = 'NoHandler' and deferrals >= 3 and attempts = 0)").await?;
    worker
        .wait_stats("NoHandler is shown", PATIENCE, |_, stats| {
            stats["conditions"].to_string().contains("NoHandler")
        })
        .await?;
    run(&mut session, "insert into app.known values ('new')").await?;
    all_settled(&mut session).await?;
    let late: Vec<(Uuid, i32)> = rows(
        &mut session,
        "select message_id, attempts from app.effect order by number",
    )
    .await?;
    ensure!(late == [(ids[1], 1), (ids[2], 0)], "{late:?}");
    Ok(())
}

/// Effect and the messages it causes are one transaction; they carry what they were caused by (W-52, mission G-14).
#[tokio::test]
async fn what_a_handler_enqueues_commits_with_its_effect_and_names_its_cause() -> Result<()> {
    let handling = Handling::start("chain", |inbox| inbox.with("retry.maxAttempts", 2)).await?;
    let mut session = handling.connect().await?;
    let mut caused = message("chain", Some("a"), 7);
    caused["correlation_id"] = "order-7".into();
    caused["traceparent"] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into();
    let ids = accept(
        &mut session,
        &[
            caused,
            message("chain", Some("b"), 8),
            message("chain fails", Some("c"), 9),
        ],
    )
    .await?;
    let _worker = handling.worker().await?;
    all_settled(&mut session).await?;
    let found: Vec<(String, String, String, String, Option<String>)> = rows(&mut session, "select payload, type, causation_id, correlation_id, traceparent from postroom.outbox order by payload, type").await?;
    let expected =
        |payload: &str, kind: &str, id: &Uuid, correlation: &str, trace: Option<&str>| {
            (
                payload.to_owned(),
                kind.to_owned(),
                id.to_string(),
                correlation.to_owned(),
                trace.map(str::to_owned),
            )
        };
    let trace = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let second = ids[1].to_string();
    ensure!(
        found
            == [
                expected("7", "order.done", &ids[0], "order-7", trace),
                expected("7", "order.seen", &ids[0], "order-7", trace),
                expected("8", "order.done", &ids[1], &second, None),
                expected("8", "order.seen", &ids[1], &second, None),
            ],
        "{found:?}"
    );
    ensure!(
        count(&mut session, "app.effect").await? == 2,
        "the one that failed has left nothing"
    );
    run(
        &mut session,
        "select postroom.enqueue('orders', 'x', 'by hand')",
    )
    .await?;
    let cause: Option<String> = one(
        &mut session,
        "select causation_id from postroom.outbox where type = 'x'",
    )
    .await?;
    ensure!(cause.is_none(), "{cause:?}");
    Ok(())
}

/// A commit that fails, as by a deferred constraint, is nobody's fault but that message's: it alone is counted.
#[tokio::test]
async fn a_message_that_fails_at_the_commit_is_found_in_its_batch() -> Result<()> {
    let handling = Handling::start("commit", |inbox| inbox.with("retry.maxAttempts", 2)).await?;
    let mut session = handling.connect().await?;
    let mut messages = numbered("plain", 0..40, 40);
    messages.insert(17, message("dangling", Some("bad"), 99));
    let mut ids = accept(&mut session, &messages).await?;
    let bad = ids.remove(17);
    let _worker = handling.worker().await?;
    all_settled(&mut session).await?;
    require_once_and_in_order(&mut session, &ids).await?;
    let dead: Vec<(Uuid, i32, bool)> = rows(
        &mut session,
        "select message_id, attempts, error like '23503: %' from postroom.dead_letter",
    )
    .await?;
    ensure!(dead == [(bad, 2, true)], "{dead:?}");
    let counted = count(&mut session, "app.effect where attempts > 0").await?;
    ensure!(counted == 0, "{counted} others were counted");
    Ok(())
}

/// A handler that takes too long is ended by the server; it alone is counted, the others of its batch are not.
#[tokio::test]
async fn a_handler_that_takes_too_long_is_ended_and_counted_alone() -> Result<()> {
    let handling = Handling::start("too_long", |inbox| {
        inbox
            .with("retry.maxAttempts", 2)
            .with("handler.sqlFunction.timeoutSeconds", 1)
            .with("handler.sqlFunction.concurrency", 1)
    })
    .await?;
    let mut session = handling.connect().await?;
    let mut messages = numbered("plain", 0..10, 10);
    messages.insert(5, message("slow", Some("bad"), 30));
    let mut ids = accept(&mut session, &messages).await?;
    let bad = ids.remove(5);
    let _worker = handling.worker().await?;
    all_settled(&mut session).await?;
    require_once_and_in_order(&mut session, &ids).await?;
    let dead: Vec<(Uuid, i32, String)> = rows(
        &mut session,
        "select message_id, attempts, error from postroom.dead_letter",
    )
    .await?;
    ensure!(
        dead == [(
            bad,
            2,
            "57014: app.handle did not end within its time".to_owned()
        )],
        "{dead:?}"
    );
    Ok(())
}

/// F23: whatever an error says, the failure is recorded, cut, and the stream goes on.
#[tokio::test]
async fn an_error_of_a_megabyte_is_kept_in_short() -> Result<()> {
    let handling =
        Handling::start("long_words", |inbox| inbox.with("retry.maxAttempts", 1)).await?;
    let mut session = handling.connect().await?;
    accept(
        &mut session,
        &[
            message("long words", Some("a"), 0),
            message("plain", Some("a"), 1),
        ],
    )
    .await?;
    let _worker = handling.worker().await?;
    all_settled(&mut session).await?;
    let length: i32 = one(
        &mut session,
        "select length(error) from postroom.dead_letter",
    )
    .await?;
    ensure!(
        length == 2_000 && count(&mut session, "app.effect").await? == 1,
        "{length}"
    );
    Ok(())
}

/// A function that is missing, or that the worker may not call, is the endpoint's fault: nothing is counted against a message, the
/// status says what to do, and work goes on by itself.
#[tokio::test]
async fn a_missing_handler_is_shown_and_nothing_is_lost() -> Result<()> {
    let handling = Handling::start("missing", |inbox| inbox.with("retry.maxAttempts", 1)).await?;
    let mut session = handling.connect().await?;
    run(
        &mut session,
        "alter function app.handle(postroom.inbox_message) rename to hidden",
    )
    .await?;
    let ids = accept(&mut session, &numbered("plain", 0..20, 5)).await?;
    let worker = handling.worker().await?;
    worker
        .wait_stats(
            "HandlerMissing is shown",
            Duration::from_secs(30),
            |_, stats| stats["conditions"].to_string().contains("HandlerMissing"),
        )
        .await?;
    run(
        &mut session,
        "alter function app.hidden(postroom.inbox_message) rename to handle",
    )
    .await?;
    all_settled(&mut session).await?;
    require_once_and_in_order(&mut session, &ids).await?;
    eventually("the condition is over", PATIENCE, || async {
        let (_, stats) = worker.stats().await.map_err(|error| error.to_string())?;
        when(
            !stats["conditions"].to_string().contains("HandlerMissing"),
            || stats["conditions"].to_string(),
        )
    })
    .await?;
    let worked = worker
        .metric(
            "postroom_messages_total",
            &[
                ("endpoint", "payments"),
                ("direction", "Inbox"),
                ("result", "processed"),
            ],
        )
        .await?;
    ensure!(worked == Some(20.0), "{worked:?}");
    Ok(())
}

/// A paused inbox accepts and handles nothing until it goes on.
#[tokio::test]
async fn a_paused_inbox_accepts_and_does_not_handle() -> Result<()> {
    let handling = Handling::start("paused", |inbox| inbox.with("paused", true)).await?;
    let mut session = handling.connect().await?;
    accept(&mut session, &numbered("plain", 0..3, 1)).await?;
    let worker = handling.worker().await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure!(
        count(&mut session, "postroom.inbox").await? == 3
            && count(&mut session, "app.effect").await? == 0
    );
    let (_, stats) = worker.stats().await?;
    ensure!(
        stats["endpoints"].to_string().contains("payments"),
        "{stats}"
    );
    Ok(())
}

/// L-16: a command for later waits for its time, and its stream with it.
#[tokio::test]
async fn a_scheduled_command_is_handled_when_it_is_due() -> Result<()> {
    let handling = Handling::start("later", |inbox| inbox).await?;
    let mut session = handling.connect().await?;
    let mut later = message("plain", Some("a"), 1);
    later["delay"] = "1500 ms".into();
    let ids = accept(
        &mut session,
        &[
            later,
            message("plain", Some("a"), 2),
            message("plain", Some("b"), 3),
        ],
    )
    .await?;
    let _worker = handling.worker().await?;
    until(
        &mut session,
        "select exists (select from app.effect where stream = 'b')",
    )
    .await?;
    ensure!(count(&mut session, "app.effect where stream = 'a'").await? == 0);
    all_settled(&mut session).await?;
    require_once_and_in_order(&mut session, &ids).await
}
