//! `postroom-worker migrate`, as people and Jobs run it.

use std::process::Output;

use anyhow::{Result, ensure};
use postroom_tests::database::Database;
use postroom_tests::ledger::Outcome;
use postroom_tests::postgres::PostgresServer;
use postroom_tests::setup::{OUTBOX, Postroom};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::{PATIENCE, Schema, count, one, resource, run, until};

/// An empty database and a resource; nothing is migrated yet.
pub(crate) async fn empty(test: &str) -> Result<Schema> {
    Ok(Schema {
        database: Database::create(PostgresServer::shared().await?, test).await?,
        file: resource().write()?,
    })
}

/// Everything about the schema, with the name of the database left out.
pub(crate) async fn dump(database: &Database) -> Result<String> {
    let output = PostgresServer::shared()
        .await?
        .tool("pg_dump", &["--schema-only", database.name()])
        .await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?.replace(database.name(), "DATABASE");
    // Newer ones begin and end with a random word.
    Ok(text
        .lines()
        .filter(|line| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict"))
        .collect::<Vec<_>>()
        .join("\n"))
}

/// What the migrations wrote into the tables, without times.
pub(crate) async fn content(session: &mut PgConnection) -> Result<String> {
    one(session, "select (select string_agg(row(version, name, checksum, worker_version)::text, ',' order by version) from postroom.schema_version) \
        || (select string_agg(row(e.name, direction, ordering, settings, resource, generation)::text, ',' order by e.name) from postroom.endpoint e) \
        || (select string_agg(row(s.*)::text, ',' order by key) from postroom.setting s) || (select count(*) from postroom.lease) \
        || (select count(*) from postroom.deduplication_bucket)").await
}

pub(crate) fn said(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// W-31, trap 17.
#[tokio::test]
async fn a_second_migration_changes_nothing() -> Result<()> {
    let schema = empty("twice").await?;
    let first = schema.launch("migrate").succeed().await?;
    ensure!(
        first.contains("Applied 0001 tables") && first.contains("orders (added)"),
        "{first}"
    );
    let mut session = schema.connect().await?;
    let (before, rows_before) = (dump(&schema.database).await?, content(&mut session).await?);
    let second = schema.launch("migrate").succeed().await?;
    ensure!(
        !second.contains("Applied") && !second.contains("Created"),
        "{second}"
    );
    ensure!(dump(&schema.database).await? == before && content(&mut session).await? == rows_before);
    let marked: bool = one(&mut session, "select bool_and(indisvalid) from pg_index").await?;
    ensure!(marked, "no index is half built");
    Ok(())
}

/// F41: five Jobs at once.
#[tokio::test]
async fn five_migrations_at_once_all_succeed_and_each_step_is_taken_once() -> Result<()> {
    let (schema, single) = (empty("five").await?, Schema::start("single").await?);
    let one_more = || async { schema.launch("migrate").succeed().await };
    let (a, b, c, d, e) =
        tokio::try_join!(one_more(), one_more(), one_more(), one_more(), one_more())?;
    let applied: usize = [&a, &b, &c, &d, &e]
        .into_iter()
        .map(|text| text.matches("Applied ").count())
        .sum();
    let mut session = schema.connect().await?;
    ensure!(
        i64::try_from(applied)? == count(&mut session, "schema_version").await?,
        "{applied}"
    );
    ensure!(dump(&schema.database).await? == dump(&single.database).await?);
    Ok(())
}

/// G-10, W-90: a migration beside workers that publish and applications that write.
#[tokio::test]
async fn workers_and_writers_go_on_while_migrations_run() -> Result<()> {
    let postroom = Postroom::start("under_load", |resource| resource).await?;
    let worker = postroom.worker().await?;
    let mut session = postroom.connect().await?;
    let load = async {
        for n in 0..300 {
            let mut draft = postroom.ledger.begin();
            let body = format!("{n}");
            let id: Uuid = one(&mut session, &format!("select message_id from postroom.enqueue('{OUTBOX}', 'a', '{body}', stream => 's{}', key => '{n}')", n % 5)).await?;
            draft.wrote(Some(&format!("s{}", n % 5)), id, body.as_bytes());
            draft.end(Outcome::Committed);
        }
        Ok::<_, anyhow::Error>(())
    };
    let migrations = async {
        for _ in 0..3 {
            let launch = postroom.launch("migrate");
            tokio::try_join!(launch.succeed(), launch.succeed())?;
        }
        Ok(())
    };
    tokio::try_join!(load, migrations)?;
    let verdict = postroom.verdict(PATIENCE).await?;
    verdict.require(0)?;
    ensure!(
        verdict.received == 300 && worker.exited()?.is_none(),
        "{verdict}"
    );
    Ok(())
}

/// F41: killed while a step runs; the next one goes on where it stopped. An event trigger holds the step.
#[tokio::test]
async fn a_migration_that_is_killed_in_the_middle_is_finished_by_the_next_one() -> Result<()> {
    let reference = Schema::start("reference").await?;
    for (tag, done) in [("CREATE TRIGGER", 1), ("CREATE VIEW", 6)] {
        let schema = empty("killed").await?;
        let mut session = schema.database.connect().await?;
        run(&mut session, &format!("create function public.hold() returns event_trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(4711); end $$; \
            create event trigger hold on ddl_command_end when tag in ('{tag}') execute function public.hold(); select pg_advisory_lock(4711)")).await?;
        let migration = schema.launch("migrate").start()?;
        let waiting = "exists (select from pg_locks l join pg_database d on d.oid = l.database where d.datname = current_database() and l.locktype = 'advisory' and not l.granted)";
        until(&mut session, &format!("select {waiting}")).await?;
        migration.kill_9().await?;
        ensure!(
            count(&mut session, "postroom.schema_version").await? == done,
            "before {tag}"
        );
        run(&mut session, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()").await?;
        until(&mut session, &format!("select not {waiting}")).await?;
        run(
            &mut session,
            "drop event trigger hold; drop function public.hold()",
        )
        .await?;
        let text = schema.launch("migrate").succeed().await?;
        ensure!(
            i64::try_from(text.matches("Applied ").count())? == 9 - done,
            "{text}"
        );
        ensure!(
            dump(&schema.database).await? == dump(&reference.database).await?,
            "as if nothing had happened"
        );
    }
    Ok(())
}

/// PR007: an older program keeps its hands off.
#[tokio::test]
async fn a_newer_schema_or_an_edited_step_is_refused_for_good() -> Result<()> {
    let schema = Schema::start("ahead").await?;
    let mut session = schema.connect().await?;
    let before = dump(&schema.database).await?;
    for (change, back, words) in [
        (
            "insert into schema_version (version, name, checksum, worker_version) values (99, 'later', 'x', '9.9.9')",
            "delete from schema_version where version = 99",
            ["SchemaAhead", "PR007", "99"],
        ),
        (
            "update schema_version set checksum = 'other' where version = 3",
            "select 1",
            ["MigrationChanged", "0003_claiming.sql", "another text"],
        ),
    ] {
        run(&mut session, change).await?;
        for arguments in [&[][..], &["--dry-run"]] {
            let output = schema
                .launch("migrate")
                .arguments(arguments)
                .output()
                .await?;
            ensure!(
                output.status.code() == Some(4)
                    && words.iter().all(|word| said(&output).contains(word)),
                "{}",
                said(&output)
            );
        }
        run(&mut session, back).await?;
    }
    ensure!(dump(&schema.database).await? == before);
    Ok(())
}

/// contracts 1: a database owner without CREATEROLE must be able to work, and PUBLIC still gets nothing.
#[tokio::test]
async fn a_login_that_may_not_create_roles_owns_everything_and_the_flow_works() -> Result<()> {
    let server = PostgresServer::shared().await?;
    let postroom = Postroom::start("one_role", |resource| resource).await?;
    let database = Database::create(server, "one_role").await?;
    let owner = format!("{}_own", database.name());
    let mut admin = database.connect().await?;
    run(
        &mut admin,
        &format!(
            "create role {owner} login password 'secret'; alter database {} owner to {owner}",
            database.name()
        ),
    )
    .await?;
    let url = server.url_as(&owner, "secret", server.port(), database.name());
    let text = postroom
        .launch("migrate")
        .database_url(&url)
        .succeed()
        .await?;
    ensure!(
        text.to_lowercase().contains("one-role") || text.contains(&owner),
        "it says so: {text}"
    );
    let exposed: i64 = count(&mut admin, "pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'postroom'::regnamespace and a.grantee = 0").await?
        + count(&mut admin, "pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where p.pronamespace = 'postroom'::regnamespace and a.grantee = 0").await?
        + count(&mut admin, "pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'postroom' and a.grantee = 0").await?;
    ensure!(exposed == 0, "{exposed} rights of PUBLIC");
    let strangers = count(&mut admin, "pg_class c where c.relnamespace = 'postroom'::regnamespace and pg_get_userbyid(c.relowner) <> (select pg_get_userbyid(datdba) from pg_database where datname = current_database())").await?;
    ensure!(strangers == 0);
    let worker = postroom.launch("run").database_url(&url).start()?;
    worker.ready(PATIENCE).await?;
    let mut session = postroom_tests::postgres::connect(&url).await?;
    let mut draft = postroom.ledger.begin();
    let id: Uuid = one(&mut session, &format!("select message_id from postroom.enqueue('{OUTBOX}', 'a', 'x', stream => 's', key => 'K')")).await?;
    draft.wrote(Some("s"), id, b"x");
    draft.end(Outcome::Committed);
    postroom.verdict(PATIENCE).await?.require(0)?;
    postroom
        .launch("migrate")
        .database_url(&url)
        .succeed()
        .await?;
    drop(worker);
    Ok(())
}

/// What is printed is what is executed.
#[tokio::test]
async fn printed_sql_run_by_psql_equals_a_migration() -> Result<()> {
    let (printed, migrated) = (empty("printed").await?, Schema::start("migrated").await?);
    let sql = printed
        .launch("migrate")
        .arguments(&["--print"])
        .succeed()
        .await?;
    let mut session = printed.database.connect().await?;
    ensure!(
        count(&mut session, "pg_namespace where nspname = 'postroom'").await? == 0,
        "printing connects to nothing"
    );
    let server = PostgresServer::shared().await?;
    let file = server
        .folder()
        .join(format!("{}.sql", printed.database.name()));
    std::fs::write(&file, sql)?;
    let output = server
        .tool(
            "psql",
            &[
                "-Xq",
                "-d",
                printed.database.name(),
                "-f",
                &file.to_string_lossy(),
            ],
        )
        .await?;
    ensure!(output.status.success(), "{}", said(&output));
    ensure!(dump(&printed.database).await? == dump(&migrated.database).await?);
    let mut other = migrated.connect().await?;
    ensure!(content(&mut session).await? == content(&mut other).await?);
    let text = printed.launch("migrate").succeed().await?;
    ensure!(!text.contains("Applied"), "nothing is left to do: {text}");
    Ok(())
}
