//! The database beneath: moved to another server, crashed, shared by two schemas.

use anyhow::{Context as _, Result, ensure};
use postroom_tests::broker::RabbitServer;
use postroom_tests::database::Database;
use postroom_tests::launch::Launch;
use postroom_tests::ledger::{Ledger, Outcome};
use postroom_tests::postgres::{PostgresOptions, PostgresServer, StopMode};
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::run as process;
use postroom_tests::setup::{EXCHANGE, OUTBOX, Postroom};
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::{Key, PATIENCE, Schema, arrays, claim_one, count, keys, one, rows, run, until};

async fn tool(server: &PostgresServer, program: &str, arguments: &[&str]) -> Result<String> {
    let output = server.tool(program, arguments).await?;
    ensure!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Writes `count` messages of fifty streams, each in a transaction of its own.
async fn write(
    session: &mut PgConnection,
    ledger: &Ledger,
    count: usize,
    note: &str,
) -> Result<()> {
    for n in 0..count {
        let (stream, body) = (format!("s{}", n % 50), format!("{note} {n}"));
        let mut draft = ledger.begin();
        let id: Uuid = one(session, &format!("insert into postroom.outbox (endpoint, type, stream, payload) values ('{OUTBOX}', 'a', '{stream}', '{body}') returning message_id")).await?;
        draft.wrote(Some(&stream), id, body.as_bytes());
        draft.end(Outcome::Committed);
    }
    Ok(())
}

/// A server with a system identifier of its own; the others of a run are copies of one folder and share theirs.
async fn server_of_its_own() -> Result<PostgresServer> {
    let server = PostgresServer::start(PostgresOptions::default()).await?;
    server.stop(StopMode::Fast).await?;
    let (data, copy) = (server.folder().join("data"), server.folder().join("copy"));
    std::fs::rename(&data, &copy)?;
    let path = data.to_string_lossy();
    let options = [
        "-U",
        server.user(),
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
        "--no-sync",
        "-D",
        &path,
    ];
    tool(&server, "initdb", &options).await?;
    std::fs::copy(copy.join("postgresql.conf"), data.join("postgresql.conf"))?;
    server.start_again().await?;
    Ok(server)
}

/// A server whose transaction numbers are beyond 5 * 2^32.
async fn server_with_high_numbers() -> Result<PostgresServer> {
    let server = PostgresServer::start(PostgresOptions::default()).await?;
    server.stop(StopMode::Fast).await?;
    let data = server.folder().join("data");
    tool(
        &server,
        "pg_resetwal",
        &["-e", "5", "-D", &data.to_string_lossy()],
    )
    .await?;
    server.start_again().await?;
    Ok(server)
}

/// Dumps a database with its roles and restores it on another server under the same name.
async fn move_database(name: &str, old: &PostgresServer, new: &PostgresServer) -> Result<Database> {
    let roles = tool(old, "pg_dumpall", &["--roles-only", "--no-role-passwords"]).await?;
    let dump = tool(old, "pg_dump", &[name]).await?;
    let restored = Database::named(new, name.to_owned()).await?;
    // The superuser's role is there already, so the roles may not stop at an error.
    for (text, into, stop) in [(roles, "postgres", "0"), (dump, name, "1")] {
        let file = new.folder().join("restore.sql");
        std::fs::write(&file, text)?;
        let (file, stop) = (file.to_string_lossy(), format!("ON_ERROR_STOP={stop}"));
        tool(new, "psql", &["-Xq", "-v", &stop, "-d", into, "-f", &file]).await?;
    }
    Ok(restored)
}

/// F50: rows with high transaction numbers come to a server whose own numbers are low.
#[tokio::test]
async fn a_dump_restored_into_a_fresh_server_goes_out_whole_and_in_order() -> Result<()> {
    let (old, new) = tokio::try_join!(server_with_high_numbers(), server_of_its_own())?;
    let rabbit = RabbitServer::shared().await?;
    let postroom = Postroom::start_on(&old, rabbit, "restore", |resource| resource).await?;
    let mut session = postroom.connect().await?;
    // A worker was here, so that leases, marks and the server's identity are part of the dump.
    claim_one(&mut session, Uuid::from_u128(1), "1 hour", OUTBOX).await?;
    write(&mut session, &postroom.ledger, 1_000, "old").await?;
    let mut draft = postroom.ledger.begin();
    let scheduled: Uuid = one(&mut session, &format!("select message_id from postroom.enqueue('{OUTBOX}', 'a', 'scheduled', stream => 'waits', key => 'K', delay => '3 s')")).await?;
    draft.wrote(Some("waits"), scheduled, b"scheduled");
    draft.end(Outcome::Committed);
    run(
        &mut session,
        "update postroom.lease set low_mark = (select max(xact) from postroom.outbox)",
    )
    .await?;
    let high = "select min(xact::text::bigint) >= 5::bigint << 32 from postroom.outbox";
    ensure!(
        one::<bool>(&mut session, high).await?,
        "the old server's numbers are high"
    );

    let restored = move_database(postroom.database.name(), &old, &new).await?;
    old.stop(StopMode::Fast).await?;
    let mut session = restored.connect().await?;
    let low = "select pg_current_xact_id()::text::bigint < (select min(xact::text::bigint) from postroom.outbox)";
    ensure!(one::<bool>(&mut session, low).await?, "its own are low");
    write(&mut session, &postroom.ledger, 100, "before the worker").await?;
    let worker = postroom
        .launch("run")
        .database_url(restored.url())
        .start()?;
    worker.ready(PATIENCE).await?;
    write(&mut session, &postroom.ledger, 100, "after").await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    verdict.require(0)?;
    ensure!(verdict.received == 1_201, "{verdict}");
    let swept = worker.metric("postroom_sweep_found_total", &[]).await?;
    ensure!(swept.unwrap_or_default() == 0.0, "{swept:?}");
    look_around(&mut session).await
}

/// After the move and the drain.
async fn look_around(session: &mut PgConnection) -> Result<()> {
    until(session, "select not exists (select from postroom.outbox) and not exists (select from postroom.deferral)").await?;
    let repeat: String = one(
        session,
        &format!("select outcome from postroom.enqueue('{OUTBOX}', 'a', 'scheduled', key => 'K')"),
    )
    .await?;
    ensure!(
        repeat == "AlreadyEnqueued",
        "the memory of identities came along"
    );
    let server: Vec<(bool, i64)> = rows(session, "select s.system_identifier = c.system_identifier, (select count(*) from postroom.worker) from postroom.server s, pg_control_system() c").await?;
    ensure!(
        server == [(true, 1)],
        "the new server is known, the old worker is not: {server:?}"
    );
    Ok(())
}

async fn incarnation(session: &mut PgConnection) -> Result<Option<Uuid>> {
    one(session, "select incarnation from postroom.poll_outbox()").await
}

/// G-12: who asks behind a pooler sees no broken connection, only another incarnation.
#[tokio::test]
async fn a_crash_changes_the_incarnation_and_a_clean_restart_does_not() -> Result<()> {
    let server = PostgresServer::start(PostgresOptions::default()).await?;
    let schema = Schema::start_on(&server, "crash").await?;
    let worker = Uuid::from_u128(1);
    let mut session = schema.connect().await?;
    claim_one(&mut session, worker, "1 hour", "orders").await?;
    let first = incarnation(&mut session).await?;
    ensure!(first.is_some());
    session.close().await?;
    server.restart(StopMode::Fast).await?;
    let mut session = schema.connect().await?;
    ensure!(
        incarnation(&mut session).await? == first,
        "nothing was lost"
    );
    server.kill_9().await?;
    server.start_again().await?;
    let mut session = schema.connect().await?;
    ensure!(
        incarnation(&mut session).await?.is_none(),
        "nobody has looked since the crash"
    );
    let held = claim_one(&mut session, worker, "1 hour", "orders").await?;
    ensure!(held.partitions.len() == 64, "leases outlive the crash");
    let second = incarnation(&mut session).await?;
    ensure!(second.is_some() && second != first, "{first:?} {second:?}");
    Ok(())
}

/// Stops or kills the process that writes what asynchronous commits have left in memory.
fn signal(name: &str, pid: i32) -> Result<()> {
    let sent = process::command("kill")
        .args(["-s", name, &pid.to_string()])
        .status()?;
    ensure!(sent.success(), "kill -s {name} {pid}");
    Ok(())
}

/// A key that is given to one message, lost in a crash, and given to another one. Returns the key of the lost one.
async fn issue_twice(server: &PostgresServer, schema: &Schema) -> Result<(Key, PgConnection)> {
    let insert =
        "insert into outbox (endpoint, type, stream, payload) values ('orders', 'a', 's', 'x')";
    let mut session = schema.connect().await?;
    run(&mut session, "checkpoint; set synchronous_commit = off").await?;
    let log_writer: i32 = one(
        &mut session,
        "select pid from pg_stat_activity where backend_type = 'walwriter'",
    )
    .await?;
    signal("STOP", log_writer)?;
    run(&mut session, insert).await?;
    let lost = keys(&mut session, "orders")
        .await?
        .pop()
        .context("it is committed, and a worker may send it")?;
    server.kill_9().await?;
    signal("KILL", log_writer)?;
    server.start_again().await?;
    let mut session = schema.connect().await?;
    ensure!(
        count(&mut session, "outbox").await? == 0,
        "the crash forgot it"
    );
    run(&mut session, insert).await?;
    let other = keys(&mut session, "orders")
        .await?
        .pop()
        .context("the second one is there")?;
    ensure!(
        (lost.partition, lost.xact, lost.id) == (other.partition, other.xact, other.id)
            && lost.message_id != other.message_id,
        "partition, transaction and position were issued again: {lost:?} {other:?}"
    );
    Ok((lost, session))
}

/// W-29, G1: for real, with a crash; and without the message id in the settle, the other message would be gone.
#[tokio::test]
async fn a_late_completion_does_not_delete_a_message_that_was_given_the_same_numbers() -> Result<()>
{
    let options = PostgresOptions::default()
        .setting("wal_writer_delay", "10s")
        .setting("autovacuum", "off")
        .setting("bgwriter_lru_maxpages", "0");
    let server = PostgresServer::start(options).await?;
    let schema = Schema::start_on(&server, "reissued").await?;
    let mut session = schema.connect().await?;
    let worker = Uuid::from_u128(1);
    let held = claim_one(&mut session, worker, "1 hour", "orders").await?;
    let (lost, mut session) = issue_twice(&server, &schema).await?;
    let lost = [lost];
    let late = arrays(&lost, |p| held.epoch(p));
    let complete = format!(
        "select deleted from postroom.complete_outbox_published('{worker}', 'orders', {late})"
    );
    let defer = format!(
        "select deferred from postroom.defer_messages('{worker}', 'orders', {late}, '{{1 h}}', '{{t}}', '{{t}}', '{{r}}', '{{e}}')"
    );
    let bury = format!(
        "select buried from postroom.bury_messages('{worker}', 'orders', {late}, '{{t}}', '{{r}}', '{{e}}')"
    );
    for settle in [&complete, &defer, &bury] {
        let touched: i64 = one(&mut session, settle).await?;
        ensure!(
            touched == 0
                && count(&mut session, "outbox").await? == 1
                && count(&mut session, "deferral").await? == 0,
            "{settle}"
        );
    }
    let text: String = one(
        &mut session,
        "select pg_get_functiondef('postroom.complete_outbox_published'::regproc)",
    )
    .await?;
    let part = " and o.message_id = k.m";
    ensure!(text.matches(part).count() == 1);
    run(&mut session, &text.replace(part, "")).await?;
    ensure!(
        one::<i64>(&mut session, &complete).await? == 1,
        "this is what the message id is for"
    );
    Ok(())
}

/// Two resources, two schemas, two workers, one database; one schema is called like a word of the language.
#[tokio::test]
async fn two_schemas_in_one_database_do_not_touch_each_other() -> Result<()> {
    let postroom = Postroom::start("two_schemas", |resource| resource).await?;
    let file = Resource::new("other")
        .outbox(Outbox::new(OUTBOX, EXCHANGE))
        .schema("select")
        .write()?;
    let launch = |command: &str| {
        Launch::new(&[command, "--resource", &file.to_string_lossy()])
            .database_url(postroom.database.url())
            .amqp_url(postroom.vhost.amqp_url())
    };
    launch("migrate").succeed().await?;
    let mut session = postroom.connect().await?;
    let first = postroom.worker().await?;
    write_into(&mut session, &postroom.ledger, "\"select\"").await?;
    postroom
        .receiver
        .wait_quiet(std::time::Duration::from_secs(1), PATIENCE)
        .await?;
    ensure!(
        postroom.receiver.distinct() == 0,
        "the first worker has nothing to do with the other schema"
    );
    let second = launch("run").start()?;
    second.ready(PATIENCE).await?;
    write_into(&mut session, &postroom.ledger, "postroom").await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    verdict.require(0)?;
    ensure!(verdict.received == 40, "{verdict}");
    for schema in ["postroom", "\"select\""] {
        let holders: i64 = one(
            &mut session,
            &format!("select count(distinct owner) from {schema}.lease"),
        )
        .await?;
        ensure!(holders == 1, "{schema}: {holders}");
    }
    for worker in [&first, &second] {
        worker
            .wait_stats("nothing is left", PATIENCE, |status, stats| {
                status == 200 && stats["endpoints"][0]["pending"] == 0
            })
            .await?;
    }
    Ok(())
}

async fn write_into(session: &mut PgConnection, ledger: &Ledger, schema: &str) -> Result<()> {
    for n in 0..20 {
        let mut draft = ledger.begin();
        let id: Uuid = one(session, &format!("select message_id from {schema}.enqueue('{OUTBOX}', 'a', 'x', stream => 's{schema}', key => 'K{n}')")).await?;
        draft.wrote(Some(&format!("s{schema}")), id, b"x");
        draft.end(Outcome::Committed);
    }
    Ok(())
}
