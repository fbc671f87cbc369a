//! Wrong files and command lines end at once with exit code 2 and a sentence for each mistake; secrets are in no answer.

use anyhow::{Result, ensure};
use postroom_tests::launch::Launch;
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::run;
use postroom_tests::setup::{EXCHANGE, OUTBOX, Postroom};
use serde_json::{Value, json};

use crate::traffic::{PATIENCE, RECOVERY};

fn good() -> Resource {
    Resource::new("shop").outbox(Outbox::new(OUTBOX, EXCHANGE))
}

/// What a command that must end with exit code 2 says; it prints nothing else.
async fn refusal(launch: &Launch) -> Result<String> {
    let output = launch.output().await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(2), "{}: {said}", output.status);
    ensure!(output.stdout.is_empty(), "answers only: {said}");
    ensure!(!said.contains("panicked"), "{said}");
    Ok(said)
}

/// A spoiled field, its value, and what the sentence about it must hold: its path, its value, the rule.
type Spoiled = (&'static str, Value, [&'static str; 3]);

fn spoiled_outboxes() -> Vec<Spoiled> {
    vec![
        (
            "outboxes.0.exchnge",
            json!("x"),
            ["spec.outboxes[0]", "exchnge", "exchange"],
        ),
        (
            "outboxes.0.ordering.mode",
            json!("Perstream"),
            ["ordering.mode", "Perstream", "PerStream"],
        ),
        (
            "outboxes.0.name",
            json!("Orders!"),
            ["spec.outboxes[0].name", "Orders!", "must"],
        ),
        (
            "outboxes.0.delivery.maxMessageBytes",
            json!(10),
            ["maxMessageBytes", "10", "1024"],
        ),
        (
            "outboxes.0.delivery.batchSize",
            json!("many"),
            ["batchSize", "many", "number"],
        ),
        (
            "outboxes.0.transport",
            json!("elsewhere"),
            ["spec.outboxes[0].transport", "elsewhere", "must"],
        ),
        (
            "outboxes.0.routingKey",
            json!("{typ}"),
            ["routingKey", "{typ}", "{type}"],
        ),
        (
            "outboxes.0.delivery.confirmTimeoutSeconds",
            json!(40),
            ["confirmTimeoutSeconds", "40", "15"],
        ),
        (
            "outboxes.0.exchange",
            Value::Null,
            ["exchange", "null", "must"],
        ),
    ]
}

/// The same outside the outboxes.
fn spoiled_elsewhere() -> Vec<Spoiled> {
    vec![
        (
            "workers.leaseSeconds",
            json!(1),
            ["spec.workers.leaseSeconds", "1", "5"],
        ),
        (
            "retention.deduplication",
            json!("soon"),
            ["retention.deduplication", "soon", "h"],
        ),
        (
            "database.schema",
            json!("pg_temp"),
            ["spec.database.schema", "pg_temp", "must"],
        ),
        (
            "database.pool.poolerMode",
            json!("Statement"),
            ["poolerMode", "Statement", "Transaction"],
        ),
        (
            "transports.0.rabbitmq.secretRef",
            json!({}),
            ["secretRef", "name", "must"],
        ),
        (
            "transports.0.rabbitmq.tls.caSecretRef",
            json!({"name": "ca"}),
            ["caSecretRef", "left out", "VerifyFull"],
        ),
    ]
}

#[tokio::test]
async fn each_wrong_field_of_a_resource_is_named_with_its_value_and_its_rule() -> Result<()> {
    let run = async |(field, value, words): Spoiled| {
        let file = good().with(field, value).write()?;
        let said = refusal(&Launch::run_resource(&file)).await?;
        ensure!(
            said.contains(&*file.to_string_lossy()),
            "{field}: the file is named: {said}"
        );
        let line = said
            .lines()
            .find(|line| words.iter().all(|word| line.contains(word)));
        ensure!(
            line.is_some(),
            "{field}: one sentence with {words:?}: {said}"
        );
        Ok::<_, anyhow::Error>(())
    };
    for case in spoiled_outboxes().into_iter().chain(spoiled_elsewhere()) {
        run(case).await?;
    }
    Ok(())
}

#[tokio::test]
async fn all_mistakes_of_a_resource_are_told_at_once_and_as_json_where_that_is_asked_for()
-> Result<()> {
    let file = good()
        .outbox(Outbox::new(OUTBOX, EXCHANGE))
        .with("workers.leaseSeconds", 1)
        .with("outboxes.0.onUnroutable", "Maybe")
        .write()?;
    let said = refusal(&Launch::run_resource(&file)).await?;
    for word in ["leaseSeconds", "onUnroutable", "Maybe"] {
        ensure!(said.contains(word), "{word}: {said}");
    }
    let migrate = Launch::new(&["migrate", "--output", "json", "--resource"]);
    let said = refusal(&migrate.arguments(&[&file.to_string_lossy()])).await?;
    let answer: Value = serde_json::from_str(said.trim())?;
    let problems = answer["error"]["problems"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    ensure!(problems.len() >= 2, "{answer}");
    ensure!(
        problems.iter().all(|problem| problem["field"].is_string()),
        "{answer}"
    );
    Ok(())
}

#[tokio::test]
async fn a_file_that_is_no_resource_or_no_configuration_is_refused_with_the_place() -> Result<()> {
    let folder = run::new_folder("files")?;
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map(|()| path.to_string_lossy().into_owned())
    };
    let cases = [
        (
            "--resource",
            file("broken.yaml", "spec: [1, 2\nmetadata: {")?,
            "line",
        ),
        ("--resource", file("empty.yaml", "")?, "empty.yaml"),
        ("--resource", file("list.yaml", "- 1\n- 2\n")?, "list.yaml"),
        (
            "--resource",
            file(
                "other.yaml",
                "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\nspec: {}\n",
            )?,
            "InboxOutbox",
        ),
        ("--config", file("broken.json", "{\"version\": 1,")?, "line"),
        (
            "--config",
            file("future.json", "{\"version\": 99}")?,
            "version",
        ),
        (
            "--config",
            file("more.json", "{\"version\": 1, \"surprise\": true}")?,
            "surprise",
        ),
        (
            "--resource",
            folder.join("nowhere.yaml").to_string_lossy().into_owned(),
            "nowhere.yaml",
        ),
    ];
    for (flag, path, word) in cases {
        let said = refusal(&Launch::new(&["run", flag, &path])).await?;
        ensure!(said.contains(word), "{path} names {word}: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn a_wrong_command_line_is_refused_with_what_would_be_right() -> Result<()> {
    let file = good().write()?;
    let file = file.to_string_lossy();
    let cases: [(&[&str], &str); 8] = [
        (&[], "Usage"),
        (&["fly"], "fly"),
        (&["run"], "--resource"),
        (&["run", "--resource", &file, "--config", &file], "--config"),
        (&["run", "--resource", &file, "--surprise"], "--surprise"),
        (
            &["run", "--resource", &file, "--http-address", "nowhere"],
            "--http-address",
        ),
        (
            &["run", "--resource", &file, "--log", "postroom=shout"],
            "--log",
        ),
        (&["explain", "--resource", &file], "MESSAGE_ID"),
    ];
    for (arguments, word) in cases {
        let said = refusal(&Launch::new(arguments)).await?;
        ensure!(said.contains(word), "{arguments:?} names {word}: {said}");
    }
    let variable =
        Launch::run_resource(std::path::Path::new(&*file)).env("POSTROOM_HTTP_ADDRESS", "x");
    ensure!(refusal(&variable).await?.contains("x"), "variables as well");
    let unset = Launch::new(&["migrate", "--resource", &file]);
    ensure!(
        refusal(&unset).await?.contains("DATABASE_URL"),
        "a variable that is not set is named"
    );
    Ok(())
}

/// In every password; if it shows anywhere, a secret has leaked.
const MARKER: &str = "Zebra7391Marker";

/// F49.
#[tokio::test]
async fn no_password_shows_in_any_log_answer_or_error_whatever_goes_wrong() -> Result<()> {
    let postroom = Postroom::start("secrets", |resource| resource).await?;
    let (database, broker) = (postroom.database.url(), postroom.vhost.amqp_url());
    let port = |url: &str| {
        url.split('/')
            .nth(2)
            .and_then(|at| at.rsplit(':').next())
            .map(str::to_owned)
    };
    let (database_port, broker_port) = (
        port(database).unwrap_or_default(),
        port(&broker).unwrap_or_default(),
    );
    let postgres =
        |password: &str, at: &str| format!("postgres://app:{password}@{at}/none?sslmode=disable");
    let amqp = |password: &str, at: &str| format!("amqp://app:{password}@{at}/none");
    let (here, there) = (
        format!("127.0.0.1:{database_port}"),
        format!("127.0.0.1:{broker_port}"),
    );
    let odd = format!("p^q G${MARKER}");
    let cases = [
        (postgres(MARKER, &here), amqp(MARKER, &there)),
        (
            postgres(MARKER, "nowhere.invalid"),
            amqp(MARKER, "nowhere.invalid"),
        ),
        (postgres(MARKER, "127.0.0.1:1"), amqp(MARKER, "127.0.0.1:1")),
        (
            postgres(MARKER, &here).replace("disable", "require"),
            amqp(MARKER, &there).replace("amqp:", "amqps:"),
        ),
        (postgres(&odd, "[/x"), amqp(&format!("{odd}/#"), "[x")),
        (
            format!("{MARKER} is no address"),
            format!("{MARKER} is no address"),
        ),
        (
            format!("postgres://app:{MARKER}@{here}/none?sslmode={MARKER}"),
            format!("amqp://app:{MARKER}@{there}/none?heartbeat={MARKER}"),
        ),
    ];
    let seen = futures::future::try_join_all(
        cases
            .iter()
            .map(|(database, broker)| all_said(&postroom, database, broker)),
    );
    for ((database, broker), said) in cases.iter().zip(seen.await?) {
        if let Some(place) = said.find(MARKER) {
            let around: String = said[place.saturating_sub(300)..]
                .chars()
                .take(400)
                .collect();
            anyhow::bail!("{database} {broker}: {around}");
        }
    }
    Ok(())
}

/// Everything that a worker and the other commands say, with the most talkative log.
async fn all_said(postroom: &Postroom, database: &str, broker: &str) -> Result<String> {
    let launch = |command: &str| {
        let launch = postroom.launch(command);
        launch
            .database_url(database)
            .amqp_url(broker)
            .env("POSTROOM_LOG", "trace")
    };
    let worker = launch("run").start()?;
    worker
        .wait_stats("both sides have failed", RECOVERY, |_, stats| {
            stats["conditions"]
                .as_array()
                .is_some_and(|list| list.len() >= 2)
        })
        .await?;
    let (_, stats) = worker.stats().await?;
    let mut said = format!("{stats}\n{}\n", worker.metrics().await?);
    let ready = worker.get("/readyz").await?;
    ensure!(ready.status == 503, "nothing can be reached");
    said += &ready.body;
    for (command, more) in [
        ("migrate", &[][..]),
        ("stats", &["--output", "json"]),
        ("explain", &["x"]),
    ] {
        let output = launch(command).arguments(more).output().await?;
        ensure!(!output.status.success(), "{command} fails");
        said += &String::from_utf8_lossy(&output.stderr);
        said += &String::from_utf8_lossy(&output.stdout);
    }
    worker.sigterm()?;
    ensure!(
        worker.wait_exit(PATIENCE).await?.success(),
        "it can be stopped"
    );
    Ok(said + &worker.log())
}

/// The port is somebody else's: nothing is half started.
#[tokio::test]
async fn a_port_that_is_taken_ends_the_worker_with_a_reason_that_names_the_address() -> Result<()> {
    let postroom = Postroom::start("port", |resource| resource).await?;
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = taken.local_addr()?.to_string();
    let launch = postroom
        .launch("run")
        .arguments(&["--http-address", &address]);
    let output = launch.output().await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(4), "{}: {said}", output.status);
    ensure!(
        said.contains(&address) && said.contains("--http-address"),
        "{said}"
    );
    Ok(())
}

/// A schema that is newer than the worker is refused for good (PR007's rule).
#[tokio::test]
async fn a_schema_of_a_newer_release_ends_the_worker_instead_of_being_misread() -> Result<()> {
    let postroom = Postroom::start("ahead", |resource| resource).await?;
    let mut session = postroom.connect().await?;
    let ahead = "insert into postroom.schema_version select * from (select (jsonb_populate_record(v, jsonb_build_object('version', 9999))).* \
         from postroom.schema_version v order by version desc limit 1) n";
    sqlx::query(ahead).execute(&mut session).await?;
    let worker = postroom.launch("run").start()?;
    let status = worker.wait_exit(PATIENCE).await?;
    ensure!(status.code() == Some(4), "{status}");
    ensure!(worker.log().contains("SchemaAhead"), "{}", worker.log());
    Ok(())
}
