//! The command line of `postroom-worker migrate`: the rehearsal, and what is wrong with a call.

use anyhow::{Result, ensure};
use postroom_tests::launch::Launch;
use postroom_tests::postgres::PostgresServer;

use crate::migrations::{content, dump, empty, said};
use crate::sql::{count, resource, rows, run};

/// The rehearsal.
#[tokio::test]
async fn a_dry_run_tells_what_would_be_done_and_does_none_of_it() -> Result<()> {
    let schema = empty("dry").await?;
    let mut session = schema.database.connect().await?;
    let roles = format!("pg_roles where rolname like '{}%'", schema.database.name());
    let before = dump(&schema.database).await?;
    let text = schema
        .launch("migrate")
        .arguments(&["--dry-run"])
        .succeed()
        .await?;
    ensure!(
        text.contains("0001 tables") && text.contains("orders"),
        "{text}"
    );
    ensure!(dump(&schema.database).await? == before && count(&mut session, &roles).await? == 0);
    let json = schema
        .launch("migrate")
        .arguments(&["--dry-run", "--output", "json"])
        .succeed()
        .await?;
    let report: serde_json::Value = serde_json::from_str(&json)?;
    ensure!(
        report["dryRun"] == true && report["applied"].as_array().map(Vec::len) == Some(9),
        "{report}"
    );
    schema.launch("migrate").succeed().await?;
    let (after, rows_after) = (dump(&schema.database).await?, content(&mut session).await?);
    schema
        .launch("migrate")
        .arguments(&["--dry-run"])
        .succeed()
        .await?;
    ensure!(dump(&schema.database).await? == after && content(&mut session).await? == rows_after);
    let applied: Vec<(i32,)> = rows(
        &mut session,
        "select version from postroom.schema_version order by 1",
    )
    .await?;
    ensure!(applied.len() == 9);
    Ok(())
}

const MARKER: &str = "marker-5e1f";

/// The call ends with this code and says the word, and shows no password.
async fn ends(arguments: &[&str], url: &str, code: i32, word: &str) -> Result<()> {
    let launch = Launch::new(arguments)
        .database_url(url)
        .amqp_url("amqp://nobody:nothing@127.0.0.1:1/");
    let output = launch.output().await?;
    let text = said(&output);
    ensure!(
        output.status.code() == Some(code) && text.contains(word),
        "{arguments:?} {code} {word}: {text}"
    );
    let password = PostgresServer::shared().await?.password();
    ensure!(
        !text.contains(MARKER) && !text.contains(password),
        "{arguments:?} shows a password: {text}"
    );
    Ok(())
}

/// Exit code 2: what a person typed.
#[tokio::test]
async fn a_wrong_command_line_or_file_ends_with_code_2_and_says_what_is_wrong() -> Result<()> {
    let schema = empty("wrong_line").await?;
    let file = schema.file.to_string_lossy();
    let spoiled = schema.file.with_file_name("wrong.yaml");
    std::fs::write(
        &spoiled,
        resource()
            .with("database.schema", "Bad-Name; drop")
            .yaml()?,
    )?;
    let cases: [(&[&str], &str); 5] = [
        (&["migrate"], "--resource"),
        (
            &["migrate", "--resource", &file, "--print", "--dry-run"],
            "--dry-run",
        ),
        (&["migrate", "--resource", &file, "--colour"], "--colour"),
        (&["migrate", "--resource", "/nowhere.yaml"], "/nowhere.yaml"),
        (
            &["migrate", "--resource", &spoiled.to_string_lossy()],
            "spec.database.schema",
        ),
    ];
    for (arguments, word) in cases {
        ends(arguments, schema.database.url(), 2, word).await?;
    }
    let mut session = schema.database.connect().await?;
    ensure!(count(&mut session, "pg_namespace where nspname = 'postroom'").await? == 0);
    Ok(())
}

/// Exit codes 3 for what may pass, and 4 for what will not.
#[tokio::test]
async fn a_server_that_cannot_be_used_ends_a_migration_with_the_right_code() -> Result<()> {
    let server = PostgresServer::shared().await?;
    let schema = empty("wrong_server").await?;
    let (name, port) = (schema.database.name(), server.port());
    let poor = format!("{name}_poor");
    let mut session = schema.database.connect().await?;
    run(
        &mut session,
        &format!("create role {poor} login password '{MARKER}'"),
    )
    .await?;
    let refused = format!("postgres://a:{MARKER}@127.0.0.1:1/x?sslmode=disable");
    let cases = [
        (refused, 3, "ConnectionRefused"),
        (
            server.url_as("nobody_here", MARKER, port, name),
            3,
            "AuthenticationFailed",
        ),
        (server.url("no_such_database"), 3, "DatabaseNotFound"),
        (
            server.url_as(&poor, MARKER, port, name),
            4,
            "PermissionDenied",
        ),
    ];
    for (url, code, word) in cases {
        ends(
            &["migrate", "--resource", &schema.file.to_string_lossy()],
            &url,
            code,
            word,
        )
        .await?;
    }
    ensure!(count(&mut session, "pg_namespace where nspname = 'postroom'").await? == 0);
    Ok(())
}
