//! The manual of the SQL interface: every example in it is run, in order, on one database.
//!
//! A block of SQL that a block of text follows must print just that: rows with ` | ` between columns, or the first line
//! of an error. Any other block must succeed.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::database::Database;
use postroom_tests::launch::Launch;
use postroom_tests::postgres::{PostgresOptions, PostgresServer};
use postroom_tests::resource::{Inbox, Outbox, Resource};

use crate::workspace::root;

#[derive(Debug, PartialEq, Eq)]
struct Example {
    line: usize,
    sql: String,
    expected: Option<String>,
}

fn examples(text: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut block: Option<(String, usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut block, line.strip_prefix("```")) {
            (None, Some(kind)) => block = Some((kind.to_owned(), number + 1, String::new())),
            (Some((_, _, content)), None) => {
                content.push_str(line);
                content.push('\n');
            }
            (Some(_), Some(_)) => {
                let (kind, line, content) = block.take().unwrap_or_default();
                match kind.as_str() {
                    "sql" => found.push(Example {
                        line,
                        sql: content,
                        expected: None,
                    }),
                    "text" => {
                        if let Some(example) = found.last_mut() {
                            example.expected = Some(content.trim_end().to_owned());
                        }
                    }
                    _ => {}
                }
            }
            (None, None) => {}
        }
    }
    found
}

async fn run(server: &PostgresServer, example: &Example) -> Result<()> {
    let arguments = [
        "-XqAt",
        "-F",
        " | ",
        "-v",
        "ON_ERROR_STOP=1",
        "-v",
        "VERBOSITY=verbose",
        "-d",
        "shop",
        "-c",
        &example.sql,
    ];
    let output = server.tool("psql", &arguments).await?;
    let (printed, said) = (
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    );
    let place = format!(
        "migrations/README.md, line {}:\n{}",
        example.line, example.sql
    );
    let expects_error = example
        .expected
        .as_deref()
        .is_some_and(|text| text.starts_with("ERROR:"));
    ensure!(
        output.status.success() != expects_error,
        "{place}\nprinted: {printed}\nsaid: {said}"
    );
    let answer = if expects_error {
        said.lines().next().unwrap_or_default()
    } else {
        printed.trim_end()
    };
    let expected = example.expected.as_deref();
    ensure!(
        expected.is_none_or(|expected| expected == answer),
        "{place}\nexpected:\n{expected:?}\nanswered:\n{answer}"
    );
    Ok(())
}

/// W-05, L-T1 and every row of the manual.
#[tokio::test]
async fn every_example_of_the_manual_does_what_it_says() -> Result<()> {
    let text =
        fs::read_to_string(root().join("migrations/README.md")).context("read the manual")?;
    let examples = examples(&text);
    ensure!(
        examples.len() > 10 && text.matches("```sql").count() == examples.len(),
        "{}",
        examples.len()
    );
    let server = PostgresServer::start(PostgresOptions::default()).await?;
    let database = Database::named(&server, "shop".to_owned()).await?;
    let file = Resource::new("shop")
        .outbox(Outbox::new("orders", "shop"))
        .inbox(Inbox::handled("payments", "payments", "app.handle_payment"))
        .inbox(Inbox::pulled("tasks", "tasks"))
        .write()?;
    Launch::new(&["migrate", "--resource", &file.to_string_lossy()])
        .database_url(database.url())
        .amqp_url("amqp://nobody:nothing@127.0.0.1:1/")
        .succeed()
        .await?;
    for example in &examples {
        run(&server, example).await?;
    }
    Ok(())
}

#[test]
fn examples_and_what_they_print_are_found() {
    let found = examples("a\n```sql\nselect 1;\n```\n```text\n1\n```\nb\n```sql\nselect 2;\n```\n");
    let example = |line, sql: &str, expected: Option<&str>| Example {
        line,
        sql: sql.to_owned(),
        expected: expected.map(str::to_owned),
    };
    assert_eq!(
        found,
        [
            example(2, "select 1;\n", Some("1")),
            example(9, "select 2;\n", None)
        ]
    );
}
