//! Messages that applications take themselves, in their own transactions.

use anyhow::{Context as _, Result, ensure};
use postroom_tests::postgres::PostgresServer;
use serde_json::Value;
use sqlx::postgres::PgConnection;

use crate::inboxes::{accept, command, complete, fail, on_offer, start, take};
use crate::sql::{claim, count, login, one, refusal, refused, rows, run};

/// Three streams of three messages each, numbered from 0: stream `s0` has 0, 3, 6.
fn nine() -> Vec<Value> {
    (0..9)
        .map(|n| command(Some(&format!("s{}", n % 3)), n))
        .collect()
}

async fn explained(session: &mut PgConnection, number: usize) -> Result<String> {
    one(session, &format!("select e from inbox b, explain_message(b.message_id::text) e where b.payload = '{number}'")).await
}

/// W-45, T-24: what was taken and not completed is there again, with the next of its stream still behind it.
#[tokio::test]
async fn only_the_heads_of_streams_are_given_out_and_a_rollback_brings_them_back() -> Result<()> {
    let schema = start("heads").await?;
    let mut session = schema.connect().await?;
    accept(&mut session, "tasks", &nine()).await?;
    for _ in 0..2 {
        ensure!(on_offer(&mut session, "'tasks', 100").await? == ["0", "1", "2"]);
    }
    run(&mut session, "begin").await?;
    let first = take(&mut session, "'tasks', 100").await?;
    ensure!(complete(&mut session, "tasks", &first[..1]).await? == 1);
    let done = first[0].number();
    let next = take(&mut session, "'tasks', 100").await?;
    let mut numbers: Vec<i64> = next.iter().map(crate::inboxes::Taken::number).collect();
    numbers.sort_unstable();
    let mut expected: Vec<i64> = (0..3).filter(|&n| n != done).chain([done + 3]).collect();
    expected.sort_unstable();
    ensure!(
        numbers == expected,
        "the next of that stream only: {numbers:?}"
    );
    run(&mut session, "rollback").await?;
    ensure!(on_offer(&mut session, "'tasks', 100").await? == ["0", "1", "2"]);
    ensure!(
        on_offer(&mut session, "'tasks', 2").await?.len() == 2,
        "no more than asked for"
    );
    for (streamless, endpoint) in [(true, "tasks"), (false, "loose")] {
        run(&mut session, "delete from inbox").await?;
        let commands: Vec<Value> = (0..5)
            .map(|n| command((!streamless).then_some("s"), n))
            .collect();
        accept(&mut session, endpoint, &commands).await?;
        let all = on_offer(&mut session, &format!("'{endpoint}', 100")).await?;
        ensure!(all.len() == 5, "nothing keeps them apart: {all:?}");
    }
    Ok(())
}

/// One order for everything: one message at a time, also where the next one is a tenant's that is not asked for.
#[tokio::test]
async fn in_total_order_one_message_is_given_out_after_the_other() -> Result<()> {
    let schema = start("total_pull").await?;
    let mut session = schema.connect().await?;
    let mut commands: Vec<Value> = (0..1_200).map(|n| command(None, n)).collect();
    commands[0]["tenant"] = "A".into();
    accept(&mut session, "whole", &commands).await?;
    ensure!(
        on_offer(&mut session, "'whole', 100, 'B'")
            .await?
            .is_empty()
            && on_offer(&mut session, "'whole', 100, ''").await?.is_empty(),
        "the turn is that of A"
    );
    for number in 0..5 {
        run(&mut session, "begin").await?;
        let taken = take(&mut session, "'whole', 100").await?;
        ensure!(
            taken.len() == 1 && taken[0].number() == number,
            "{number}: {taken:?}"
        );
        ensure!(complete(&mut session, "whole", &taken).await? == 1);
        run(&mut session, "commit").await?;
    }
    Ok(())
}

/// Trap 6: what waits keeps its own stream and nobody else, however much of it there is.
#[tokio::test]
async fn any_number_of_waiting_messages_in_front_hide_none_that_can_be_taken() -> Result<()> {
    let schema = start("behind").await?;
    let mut session = schema.connect().await?;
    let put = async |session: &mut PgConnection, endpoint: &str, what: &str| {
        let sql = format!(
            "insert into inbox (endpoint, type, stream, payload, content_type, available_at) {}",
            what.replace("ENDPOINT", endpoint)
        );
        run(session, &sql).await
    };
    // All streams of this test share the partition of stream 'x'.
    let same = "select 'ENDPOINT', 'a', s, s, 't', null from (select 'q' || n as s from generate_series(1, 2000) n) q \
        where get_byte(sha256(convert_to(E'\\n' || s, 'UTF8')), 0) & 63 = get_byte(sha256(convert_to(E'\\nx', 'UTF8')), 0) & 63 limit 3";
    for endpoint in ["tasks", "skips"] {
        put(&mut session, endpoint, "select 'ENDPOINT', 'a', 'x', n::text, 't', case when n = 1 then 'infinity'::timestamptz end from generate_series(1, 5000) n").await?;
        put(&mut session, endpoint, same).await?;
        let offered = on_offer(&mut session, &format!("'{endpoint}', 100")).await?;
        let others = offered.iter().filter(|body| body.starts_with('q')).count();
        if endpoint == "tasks" {
            ensure!(others == 3 && offered.len() == 3, "{offered:?}");
        } else {
            ensure!(
                offered.contains(&"2".to_owned()),
                "the scheduled one is passed: {offered:?}"
            );
        }
    }
    put(
        &mut session,
        "loose",
        "select 'ENDPOINT', 'a', null, 'later', 't', 'infinity' from generate_series(1, 80000)",
    )
    .await?;
    put(
        &mut session,
        "loose",
        "select 'ENDPOINT', 'a', null, 'now' || n, 't', null from generate_series(1, 64) n",
    )
    .await?;
    let offered = on_offer(&mut session, "'loose', 100").await?;
    ensure!(offered.len() == 64, "one in each partition: {offered:?}");
    Ok(())
}

/// L-33: a failed head is waited for; the others go on; at the limit it is given up and its stream is free.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, step by step")]
async fn a_failed_message_blocks_its_stream_until_it_is_completed_or_given_up() -> Result<()> {
    let schema = start("failed_pull").await?;
    let mut session = schema.connect().await?;
    accept(&mut session, "tasks", &nine()).await?;
    let head = async |session: &mut PgConnection| -> Result<_> {
        let taken = take(session, "'tasks', 100").await?;
        let head = taken
            .into_iter()
            .find(|one| one.stream.as_deref() == Some("s0"));
        head.context("the head of s0")
    };
    for (attempt, delay) in [(0, 60), (1, 100)] {
        let failed = head(&mut session).await?;
        ensure!(
            failed.number() == 0 && failed.attempts == attempt,
            "{failed:?}"
        );
        ensure!(fail(&mut session, "tasks", &failed.ticket, None).await? == "Deferred");
        let due: f64 = one(&mut session, "select extract(epoch from due_at - last_failed_at)::float8 from deferral where blocking and reason = 'HandlerFailed' and error = 'cannot'").await?;
        ensure!(
            (due - f64::from(delay)).abs() < 1.0,
            "{due} after attempt {attempt}"
        );
        ensure!(
            on_offer(&mut session, "'tasks', 100").await? == ["1", "2"],
            "its stream waits and nobody else"
        );
        ensure!(
            explained(&mut session, 0)
                .await?
                .contains("HandlerFailed: cannot")
        );
        ensure!(explained(&mut session, 3).await?.contains("parked behind"));
        ensure!(
            count(
                &mut session,
                "blocked_stream where stream = 's0' and parked = 2"
            )
            .await?
                == 1
        );
        run(
            &mut session,
            "update deferral set due_at = clock_timestamp()",
        )
        .await?;
    }
    let last = head(&mut session).await?;
    ensure!(fail(&mut session, "tasks", &last.ticket, None).await? == "Buried");
    ensure!(
        fail(&mut session, "tasks", &last.ticket, None).await? == "Gone",
        "it is settled"
    );
    ensure!(on_offer(&mut session, "'tasks', 100").await? == ["1", "2", "3"]);
    let dead: Vec<(String, String, i32, String)> = rows(
        &mut session,
        "select reason, error, attempts, payload from dead_letter",
    )
    .await?;
    ensure!(
        dead == [(
            "HandlerFailed".to_owned(),
            "cannot".to_owned(),
            3,
            "0".to_owned()
        )],
        "{dead:?}"
    );
    ensure!(count(&mut session, "deferral").await? == 0);
    let again = head(&mut session).await?;
    ensure!(again.number() == 3 && again.attempts == 0);
    ensure!(fail(&mut session, "tasks", &again.ticket, Some("0")).await? == "Deferred");
    let again = head(&mut session).await?;
    ensure!(again.number() == 3 && again.attempts == 1, "due at once");
    ensure!(complete(&mut session, "tasks", &[again]).await? == 1);
    ensure!(
        count(&mut session, "deferral").await? == 0,
        "its deferral went with it"
    );
    Ok(())
}

/// `onFailure: Skip`: the stream goes past what failed, which comes again when it is due.
#[tokio::test]
async fn a_failed_message_is_passed_by_its_stream_where_the_inbox_says_so() -> Result<()> {
    let schema = start("skipped_pull").await?;
    let mut session = schema.connect().await?;
    let commands: Vec<Value> = (0..4).map(|n| command(Some("s"), n)).collect();
    accept(&mut session, "skips", &commands).await?;
    let taken = take(&mut session, "'skips', 10").await?;
    fail(&mut session, "skips", &taken[0].ticket, None).await?;
    ensure!(on_offer(&mut session, "'skips', 10").await? == ["1"]);
    run(
        &mut session,
        "update deferral set due_at = clock_timestamp()",
    )
    .await?;
    ensure!(on_offer(&mut session, "'skips', 10").await? == ["0", "1"]);
    // Had the inbox blocked streams before, and had an earlier message failed then, that one comes first.
    let second = take(&mut session, "'skips', 10")
        .await?
        .pop()
        .context("the second message")?;
    fail(&mut session, "skips", &second.ticket, Some("0")).await?;
    run(
        &mut session,
        "update deferral set blocking = true, due_at = 'infinity' where attempts = 1 and id = (select min(id) from deferral)",
    )
    .await?;
    ensure!(
        on_offer(&mut session, "'skips', 10").await?.is_empty(),
        "nothing goes past one that blocks"
    );
    Ok(())
}

/// L-16: an expired command is no work any more; it is kept and shown.
#[tokio::test]
async fn an_expired_message_is_not_given_out_but_kept_as_a_dead_letter() -> Result<()> {
    let schema = start("expired_pull").await?;
    let mut session = schema.connect().await?;
    let mut commands = nine();
    commands[0]["expires_at"] = "2001-01-01".into();
    commands[1]["expires_at"] = "2999-01-01".into();
    accept(&mut session, "tasks", &commands).await?;
    let taken = take(&mut session, "'tasks', 100").await?;
    let mut numbers: Vec<i64> = taken.iter().map(crate::inboxes::Taken::number).collect();
    numbers.sort_unstable();
    ensure!(numbers == [1, 2], "{numbers:?}");
    ensure!(
        count(
            &mut session,
            "dead_letter where reason = 'Expired' and payload = '0' and attempts = 0"
        )
        .await?
            == 1
    );
    ensure!(on_offer(&mut session, "'tasks', 100").await? == ["1", "2", "3"]);
    Ok(())
}

/// L-57, and what is paused; the tenant's work is found wherever it stands.
#[tokio::test]
async fn a_tenant_gets_its_own_messages_and_a_paused_inbox_gives_none() -> Result<()> {
    let schema = start("tenant_pull").await?;
    let mut session = schema.connect().await?;
    run(&mut session, "insert into inbox (endpoint, type, tenant, stream, payload) select 'tasks', 'a', 'big', 's', n::text from generate_series(1, 3000) n").await?;
    run(&mut session, "insert into inbox (endpoint, type, tenant, payload) select 'tasks', 'a', 'big', 'x' from generate_series(1, 3000) n").await?;
    run(&mut session, "insert into inbox (endpoint, type, tenant, stream, payload) values ('tasks', 'a', 'small', 's', 'small'), ('tasks', 'a', '', 's', 'nobody''s')").await?;
    ensure!(on_offer(&mut session, "'tasks', 100, 'small'").await? == ["small"]);
    for blank in ["''", "'  '"] {
        ensure!(
            on_offer(&mut session, &format!("'tasks', 100, {blank}")).await? == ["nobody's"],
            "no tenant is the empty one"
        );
    }
    ensure!(
        on_offer(&mut session, "'tasks', 100, 'other'")
            .await?
            .is_empty()
    );
    ensure!(on_offer(&mut session, "'tasks', 100").await?.len() == 100);
    run(
        &mut session,
        "update endpoint set paused = true where name = 'tasks'",
    )
    .await?;
    ensure!(on_offer(&mut session, "'tasks', 100").await?.is_empty());
    Ok(())
}

/// L-T10: a message whose sender gave no key has one made of queue and id.
#[tokio::test]
async fn a_taken_message_carries_the_key_of_its_queue_and_id() -> Result<()> {
    let schema = start("keys_pull").await?;
    let mut session = schema.connect().await?;
    let plain = crate::inboxes::Delivery::new("order-7", "x");
    let keyed = crate::inboxes::Delivery::new("order-8", "x").key("K");
    for batch in [[plain], [keyed]] {
        crate::inboxes::receive(&mut session, "tasks", &batch).await?;
    }
    let keys: Vec<(String, String)> = rows(
        &mut session,
        "select foreign_id, idempotency_key from take_inbox('tasks', 10) order by 1",
    )
    .await?;
    let pair = |id: &str, key: &str| (id.to_owned(), key.to_owned());
    ensure!(
        keys == [
            pair("order-7", "ingress:to-tasks:order-7"),
            pair("order-8", "K")
        ],
        "{keys:?}"
    );
    Ok(())
}

/// PR004 and PR010 by name; nothing is changed by them.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, step by step")]
async fn wrong_tickets_and_arguments_are_refused_by_name() -> Result<()> {
    let schema = start("wrong_pull").await?;
    let mut session = schema.connect().await?;
    accept(&mut session, "tasks", &nine()).await?;
    let ticket = take(&mut session, "'tasks'").await?.remove(0).ticket;
    for wrong in [
        "null",
        "''",
        "'x'",
        "'1.2.3'",
        "'1.2.3.4'",
        "'99999.1.1.00000000-0000-0000-0000-000000000000'",
        &format!("'{ticket}.5'"),
        &format!("' {ticket}'"),
        &format!("'0{ticket}'"),
    ] {
        for call in [
            format!("complete_inbox('tasks', array['{ticket}', {wrong}])"),
            format!("fail_inbox('tasks', {wrong}, 'no')"),
        ] {
            let refusal = refused(&mut session, &format!("select postroom.{call}")).await?;
            ensure!(
                refusal.code == "PR010" && refusal.message.contains("none that take_inbox gave"),
                "{call}: {refusal:?}"
            );
        }
    }
    for (call, code, word) in [
        ("take_inbox('tasks', 0)".to_owned(), "PR010", "at least 1"),
        ("take_inbox('tasks', null)".to_owned(), "PR010", "null"),
        ("take_inbox('nowhere')".to_owned(), "PR004", "nowhere"),
        ("take_inbox('payments')".to_owned(), "PR004", "payments"),
        ("take_inbox('orders')".to_owned(), "PR004", "orders"),
        (
            "complete_inbox('payments', '{}')".to_owned(),
            "PR004",
            "payments",
        ),
        (
            format!("fail_inbox('payments', '{ticket}', 'no')"),
            "PR004",
            "payments",
        ),
        (
            format!("fail_inbox('tasks', '{ticket}', 'no', '-1 s')"),
            "PR010",
            "negative",
        ),
        (
            format!("fail_inbox('tasks', '{ticket}', 'no', '1000000 years')"),
            "PR010",
            "1000 years",
        ),
    ] {
        let refusal = refused(&mut session, &format!("select postroom.{call}")).await?;
        ensure!(
            refusal.code == code && refusal.message.contains(word),
            "{call}: {refusal:?}"
        );
    }
    for nothing in ["'{}'", "null"] {
        let done = format!("select complete_inbox('tasks', {nothing})");
        ensure!(one::<i64>(&mut session, &done).await? == 0, "{nothing}");
    }
    let elsewhere = format!("select complete_inbox('endless', '{{{ticket}}}')");
    ensure!(
        one::<i64>(&mut session, &elsewhere).await? == 0,
        "a ticket is good for its inbox"
    );
    ensure!(
        count(&mut session, "inbox").await? == 9 && count(&mut session, "deferral").await? == 0
    );
    Ok(())
}

/// Rights of an application, and no more; workers leave such an inbox alone.
#[tokio::test]
async fn an_application_works_with_its_rights_alone_and_workers_keep_out() -> Result<()> {
    let schema = start("rights_pull").await?;
    let mut admin = schema.connect().await?;
    let (_, mut app) = login(PostgresServer::shared().await?, &schema.database, "app").await?;
    accept(&mut app, "tasks", &nine()).await?;
    run(&mut app, "begin").await?;
    let taken = take(&mut app, "'tasks', 2").await?;
    ensure!(complete(&mut app, "tasks", &taken[..1]).await? == 1);
    ensure!(fail(&mut app, "tasks", &taken[1].ticket, None).await? == "Deferred");
    run(&mut app, "commit").await?;
    ensure!(count(&mut admin, "inbox").await? == 8);
    for forbidden in [
        "select * from postroom.inbox",
        "delete from postroom.inbox",
        "select postroom.give_up_taken(null, 'a', 'b', 1)",
        "select postroom.read_ticket('1')",
    ] {
        ensure!(
            refused(&mut app, forbidden).await?.code == "42501",
            "{forbidden}"
        );
    }
    let (_, mut worker) =
        login(PostgresServer::shared().await?, &schema.database, "worker").await?;
    ensure!(
        refused(&mut worker, "select postroom.take_inbox('tasks')")
            .await?
            .code
            == "42501"
    );
    let me = uuid::Uuid::from_u128(1);
    let held = claim(&mut worker, me, "1 hour", "{tasks,payments}").await?;
    ensure!(
        held["tasks"].partitions.is_empty() && held["payments"].partitions.len() == 64,
        "{held:?}"
    );
    Ok(())
}

/// A snapshot from before a failure would not see what the failure left.
#[tokio::test]
async fn a_snapshot_older_than_a_failure_has_to_begin_again() -> Result<()> {
    let schema = start("stale_pull").await?;
    let (mut old, mut other) = (schema.connect().await?, schema.connect().await?);
    accept(
        &mut other,
        "tasks",
        &[command(Some("s"), 0), command(Some("s"), 1)],
    )
    .await?;
    for settle in ["fail", "complete"] {
        run(&mut old, "begin isolation level repeatable read; select 1").await?;
        let taken = take(&mut other, "'tasks'").await?;
        if settle == "fail" {
            fail(&mut other, "tasks", &taken[0].ticket, Some("0")).await?;
        } else {
            complete(&mut other, "tasks", &taken).await?;
        }
        let outcome = match take(&mut old, "'tasks'").await {
            Ok(taken) => complete(&mut old, "tasks", &taken).await.err(),
            Err(error) => Some(error),
        };
        let error = outcome.context("a stale snapshot may not settle anything")?;
        ensure!(refusal(error)?.code == "40001", "after {settle}");
        run(&mut old, "rollback").await?;
    }
    ensure!(count(&mut other, "deferral").await? == 0 && count(&mut other, "inbox").await? == 1);
    Ok(())
}
