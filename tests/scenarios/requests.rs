//! Requests: a repeated one gets the decision that was made, whatever comes in between.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::database::Database;
use postroom_tests::launch::Launch;
use postroom_tests::postgres::PostgresServer;
use postroom_tests::resource::{Inbox, Outbox, Resource};
use postroom_tests::run as run_folder;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::sql::{count, one, refused, rows, run, until_waiting};
use crate::workload::Chance;

/// The script that a reader can follow.
const EXAMPLE: &str = include_str!("../examples/reservations.sql");

/// A database with the outbox `orders` and the inbox `tasks`.
pub(crate) async fn shop(test: &str) -> Result<Database> {
    let server = PostgresServer::shared().await?;
    let database = Database::create(server, test).await?;
    let resource = Resource::new("shop")
        .outbox(Outbox::new("orders", "shop"))
        .inbox(Inbox::pulled("tasks", "tasks"));
    let file = resource.write()?;
    Launch::new(&["migrate", "--resource", &file.to_string_lossy()])
        .database_url(database.url())
        .amqp_url("amqp://nobody:nothing@127.0.0.1:1/")
        .succeed()
        .await?;
    Ok(database)
}

/// Tables, rules and function of the example, without what happens in it.
pub(crate) async fn ground_of_the_example(session: &mut PgConnection) -> Result<()> {
    let (ground, _) = EXAMPLE
        .split_once("-- Five books on the shelf.")
        .context("the place in the script")?;
    run(session, ground).await
}

/// Runs a script as a reader would; answers whether it came to its end, and what it said.
async fn psql(database: &Database, script: &str) -> Result<(bool, String)> {
    let file = run_folder::new_folder("script")?.join("script.sql");
    std::fs::write(&file, script)?;
    let file = file.to_string_lossy();
    let arguments = [
        "--no-psqlrc",
        "--quiet",
        "--set",
        "ON_ERROR_STOP=1",
        "--file",
        &file,
        database.url(),
    ];
    let output = PostgresServer::shared()
        .await?
        .tool("psql", &arguments)
        .await?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.success(), text))
}

async fn connect(database: &Database) -> Result<PgConnection> {
    let mut session = database.connect().await?;
    run(&mut session, "set search_path = postroom, public").await?;
    Ok(session)
}

/// T-01 to T-05, T-11 to T-16, T-24, T-25, T-30, T-35: the chapter's numbers, step by step.
#[tokio::test]
async fn the_worked_example_comes_out_as_it_says() -> Result<()> {
    let database = shop("example").await?;
    let (succeeded, text) = psql(&database, EXAMPLE).await?;
    ensure!(succeeded, "{text}");
    let mut session = connect(&database).await?;
    let lines: Vec<(String,)> = rows(
        &mut session,
        "select * from explain_request('T-A', 'reserve', 'IDEM-A')",
    )
    .await?;
    let text: Vec<&str> = lines.iter().map(|(line,)| line.as_str()).collect();
    ensure!(text.len() == 4, "{text:?}");
    for (line, words) in text.iter().zip([
        "was accepted at",
        "it waits for a worker",
        "recorded provider_unresolved",
        "recorded delivery_verified",
    ]) {
        ensure!(line.contains(words), "{line}");
    }
    Ok(())
}

/// The script notices when the shop's rules are broken: each of these lines, put in front of the last check, stops it.
#[tokio::test]
async fn the_worked_example_notices_what_is_wrong() -> Result<()> {
    for damage in [
        "update shop.stock set on_hand = on_hand - 1 where item = 'book';",
        "delete from shop.reservation where quantity = 2;",
        "update postroom.request set status = 'rejected' where key = 'IDEM-A';",
    ] {
        let database = shop("damaged").await?;
        let (before, after) = EXAMPLE
            .split_once("-- The receiver gets message MSG-A")
            .context("the place in the script")?;
        let script = format!("{before}\n{damage}\nselect shop.reconcile();\n-- {after}");
        let (succeeded, text) = psql(&database, &script).await?;
        ensure!(!succeeded && text.contains("wanted"), "{damage}: {text}");
    }
    Ok(())
}

/// T-17: of two first attempts one decides, the other waits and gets its decision.
#[tokio::test]
async fn two_first_attempts_at_once_have_one_decision() -> Result<()> {
    let database = shop("two_first").await?;
    let (mut first, mut second, mut observer) = (
        connect(&database).await?,
        connect(&database).await?,
        connect(&database).await?,
    );
    let begin =
        "select state || ' ' || coalesce(status, '-') from begin_request('T', 'pay', 'K', 'm')";
    run(&mut first, "begin").await?;
    ensure!(one::<String>(&mut first, begin).await? == "new -");
    let pid: i32 = one(&mut second, "select pg_backend_pid()").await?;
    let waits = tokio::spawn(async move {
        let answer: Result<String> = one(&mut second, begin).await;
        answer
    });
    until_waiting(&mut observer, pid).await?;
    run(
        &mut first,
        "select finish_request('T', 'pay', 'K', 'accepted', '{\"n\": 1}')",
    )
    .await?;
    run(&mut first, "commit").await?;
    ensure!(waits.await?? == "replay accepted");
    Ok(())
}

/// The first attempt rolls back: the one that waited is the first now.
#[tokio::test]
async fn an_attempt_that_waited_for_a_failed_one_is_the_first() -> Result<()> {
    let database = shop("failed_first").await?;
    let (mut first, mut second, mut observer) = (
        connect(&database).await?,
        connect(&database).await?,
        connect(&database).await?,
    );
    run(&mut first, "begin").await?;
    run(&mut first, "select begin_request('T', 'pay', 'K', 'm')").await?;
    let pid: i32 = one(&mut second, "select pg_backend_pid()").await?;
    let waits = tokio::spawn(async move {
        run(&mut second, "begin").await?;
        let state: String = one(
            &mut second,
            "select state from begin_request('T', 'pay', 'K', 'm')",
        )
        .await?;
        run(
            &mut second,
            "select finish_request('T', 'pay', 'K', 'rejected'); commit",
        )
        .await?;
        Ok::<_, anyhow::Error>(state)
    });
    until_waiting(&mut observer, pid).await?;
    run(&mut first, "rollback").await?;
    ensure!(waits.await?? == "new");
    let status: String = one(
        &mut observer,
        "select status from request_outcome('T', 'pay', 'K')",
    )
    .await?;
    ensure!(status == "rejected");
    Ok(())
}

/// Above READ COMMITTED the second first attempt gets 40001 instead of an answer from an old snapshot.
#[tokio::test]
async fn a_second_attempt_with_an_old_snapshot_is_told_to_try_again() -> Result<()> {
    let database = shop("old_snapshot").await?;
    let (mut first, mut second) = (connect(&database).await?, connect(&database).await?);
    run(
        &mut second,
        "begin isolation level repeatable read; select 1",
    )
    .await?;
    run(&mut second, "select count(*) from postroom.request").await?;
    run(&mut first, "begin; select begin_request('T', 'pay', 'K', 'm'); select finish_request('T', 'pay', 'K', 'accepted'); commit").await?;
    let refusal = refused(&mut second, "select begin_request('T', 'pay', 'K', 'm')").await?;
    ensure!(refusal.code == "40001", "{refusal:?}");
    Ok(())
}

/// Statement, code, and words of the message.
const WRONG: [(&str, &str, &str); 13] = [
    (
        "select begin_request('T', 'pay', 'K', 'm')",
        "PR006",
        "no outcome",
    ),
    (
        "begin; select begin_request('T', 'pay', 'K', 'm'); select begin_request('T', 'pay', 'K', 'm')",
        "PR009",
        "already",
    ),
    (
        "select begin_request('T', '', 'K', 'm')",
        "PR010",
        "operation is missing",
    ),
    (
        "select begin_request('T', 'pay', ' ', 'm')",
        "PR010",
        "key is missing",
    ),
    (
        "select begin_request('T', 'pay', 'K', null)",
        "PR010",
        "meaning is missing",
    ),
    (
        "select begin_request('T', 'pay', repeat('k', 256), 'm')",
        "PR005",
        "256 bytes",
    ),
    (
        "select begin_request(repeat('t', 256), 'pay', 'K', 'm')",
        "PR005",
        "tenant has 256 bytes",
    ),
    (
        "select begin_request('T', 'pay', 'K', convert_to(repeat('m', 65537), 'UTF8'))",
        "PR005",
        "65537 bytes",
    ),
    (
        "select finish_request('T', 'pay', 'K', 'accepted')",
        "PR010",
        "not begun",
    ),
    (
        "begin; select begin_request('T', 'pay', 'K', 'm'); select finish_request('T', 'pay', 'K', 'maybe')",
        "PR010",
        "'maybe'",
    ),
    (
        "begin; select begin_request('T', 'pay', 'K', 'm'); select finish_request('T', 'pay', 'K', 'accepted'); select finish_request('T', 'pay', 'K', 'rejected')",
        "PR010",
        "an outcome already",
    ),
    (
        "select record_delivery(gen_random_uuid(), 'delivery_verified')",
        "PR010",
        "not known",
    ),
    (
        "select canonical_meaning('{\"a\": {\"b\": 1, \"b\": 1}}')",
        "PR010",
        "comes twice in $.a",
    ),
];

/// PR005, PR006, PR009, PR010: what is wrong is refused by name, and nothing is left of it.
#[tokio::test]
async fn what_is_wrong_with_a_request_is_refused_by_name() -> Result<()> {
    let database = shop("wrong_requests").await?;
    let mut session = connect(&database).await?;
    for (statement, code, words) in WRONG {
        let refusal = refused(&mut session, statement).await?;
        ensure!(
            refusal.code == code && refusal.message.contains(words),
            "{statement}: {refusal:?}"
        );
        run(&mut session, "rollback").await?;
        ensure!(
            count(&mut session, "request").await? == 0,
            "{statement} left something"
        );
    }
    Ok(())
}

/// T-08, T-09: equal documents are equal bytes, and what differs stays apart.
#[tokio::test]
async fn equal_documents_have_one_meaning_and_different_ones_have_two() -> Result<()> {
    let database = shop("meanings").await?;
    let mut session = connect(&database).await?;
    let same =
        |a: &str, b: &str| format!("select canonical_meaning('{a}') = canonical_meaning('{b}')");
    for (a, b, equal) in [
        (r#"{"a": 1, "b": [1, 2]}"#, r#"{ "b":[1,2],"a":1 }"#, true),
        (r#"{"a": "\u00e9"}"#, r#"{"a": "é"}"#, true),
        (
            r#"{"a": {"y": null, "x": {}}}"#,
            r#"{"a": {"x": {}, "y": null}}"#,
            true,
        ),
        (r#"{"a": 1}"#, r#"{"a": 1.0}"#, false),
        (r#"{"a": 1}"#, r#"{"a": "1"}"#, false),
        (r#"{"a": null}"#, r"{}", false),
        ("[1, 2]", "[2, 1]", false),
        ("[]", "{}", false),
        (r#"{"a": "x,y"}"#, r#"{"a": "x", "y": ""}"#, false),
    ] {
        ensure!(
            one::<bool>(&mut session, &same(a, b)).await? == equal,
            "{a} and {b}"
        );
    }
    Ok(())
}

/// T-29: outcomes are forgotten by whole buckets, only after the window, and the setting of the resource is in force.
#[tokio::test]
async fn outcomes_are_remembered_for_the_window_and_then_forgotten_by_buckets() -> Result<()> {
    let database = shop("window").await?;
    let mut session = connect(&database).await?;
    let days: String = one(
        &mut session,
        "select resource_value from setting where key = 'request_retention_days'",
    )
    .await?;
    ensure!(days == "30", "{days}");
    let decide = |key: &str| {
        format!(
            "begin; select begin_request('T', 'pay', '{key}', 'm'); select finish_request('T', 'pay', '{key}', 'accepted'); commit"
        )
    };
    run(&mut session, &decide("OLD")).await?;
    let turn = "select sum(rows)::bigint from perform_maintenance() where task = 'request_buckets'";
    // Ten days for each bucket: the first is emptied after the window has passed since it was closed.
    for (age, turned, known) in [
        (9, 0, true),
        (11, 1, true),
        (11, 1, true),
        (11, 1, true),
        (11, 1, false),
    ] {
        run(&mut session, &format!("update request_bucket set opened_at = opened_at - interval '{age} days' where opened_at is not null")).await?;
        ensure!(
            one::<i64>(&mut session, turn).await? == turned,
            "{age} days"
        );
        let found = count(&mut session, "request_outcome('T', 'pay', 'OLD')").await? == 1;
        ensure!(found == known, "after {age} more days: {found}");
        if age == 9 {
            run(&mut session, "update request_bucket set opened_at = opened_at + interval '9 days' where opened_at is not null").await?;
        }
    }
    let state: String = one(
        &mut session,
        "select state from begin_request('T', 'pay', 'OLD', 'other') where false or true",
    )
    .await
    .unwrap_or_default();
    ensure!(state != "conflict", "a forgotten key is a new one");
    Ok(())
}

/// The rules of the example, looked at by somebody else than the script.
const RECONCILE: &str = "select shop.reconcile()";

/// T-33 and the property of the chapter: whatever attempts, repeats, conflicts, failures, lost connections and replenishments come in
/// whatever order, the rules hold, each key has one decision, and each decision one effect.
#[tokio::test]
async fn no_order_of_attempts_failures_and_repeats_breaks_the_rules() -> Result<()> {
    let database = shop("interleaved").await?;
    let mut session = database.connect().await?;
    ground_of_the_example(&mut session).await?;
    run(
        &mut session,
        "insert into shop.stock (item, on_hand, initial) values ('book', 40, 40)",
    )
    .await?;
    let chance = Chance::new();
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..6u64 {
        let (database_url, seed) = (database.url().to_owned(), chance.below(u64::MAX - 1));
        tasks.spawn(async move { customer(&database_url, worker, seed).await });
    }
    let mut decisions = std::collections::BTreeMap::new();
    while let Some(done) = tasks.join_next().await {
        for (key, decision) in done?? {
            let known = decisions
                .entry(key.clone())
                .or_insert_with(|| decision.clone());
            ensure!(
                *known == decision,
                "{key} was decided twice: {known} and {decision}"
            );
        }
    }
    run(&mut session, RECONCILE).await?;
    let recorded = count(&mut session, "postroom.request").await?;
    ensure!(
        recorded > 20 && !decisions.is_empty(),
        "{recorded} requests, {} decisions",
        decisions.len()
    );
    let mixed: i64 = one(
        &mut session,
        "select count(distinct status) from postroom.request",
    )
    .await?;
    ensure!(
        mixed == 2,
        "both accepted and rejected requests are needed to prove something"
    );
    Ok(())
}

/// Sixty steps by chance; answers the decisions that it was told, by key.
async fn customer(url: &str, worker: u64, seed: u64) -> Result<Vec<(String, String)>> {
    let mut numbers = seed;
    let mut below = move |end: u64| {
        numbers = numbers
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (numbers >> 33) % end
    };
    let mut session = postroom_tests::postgres::connect(url).await?;
    let mut told = Vec::new();
    for _ in 0..60 {
        let (key, quantity) = (below(40), 1 + below(2) * below(5));
        match below(10) {
            0 => {
                run(&mut session, "update shop.stock set on_hand = on_hand + 1, replenished = replenished + 1 where item = 'book'").await?;
            }
            1 => {
                let step = ["begin", "stock", "message", "reservation", "outcome"]
                    [usize::try_from(below(5))?];
                let broken =
                    format!("select shop.reserve('T', 'K{key}', 'book', {quantity}, '{step}')");
                drop(session.execute(AssertSqlSafe(broken)).await);
            }
            2 => {
                // The connection goes in the middle of it.
                let mut lost = postroom_tests::postgres::connect(url).await?;
                run(
                    &mut lost,
                    &format!("begin; select shop.reserve('T', 'K{key}', 'book', {quantity})"),
                )
                .await?;
                tokio::time::sleep(Duration::from_millis(below(5))).await;
                drop(lost);
            }
            _ => {
                let answer: serde_json::Value = one(
                    &mut session,
                    &format!("select shop.reserve('T', 'K{key}', 'book', {quantity})"),
                )
                .await?;
                if answer["state"] != "conflict" {
                    told.push((
                        format!("K{key}"),
                        format!("{} {}", answer["status"], answer["left"]),
                    ));
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(worker % 3)).await;
    }
    Ok(told)
}
