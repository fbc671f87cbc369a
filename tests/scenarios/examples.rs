//! The example services: each is run as it stands, and answers as a repeated request deserves.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use postroom_tests::eventually::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::ground::PATIENCE;
use crate::requests::{ground_of_the_example, shop};
use crate::sql::{count, one, run};

/// An answer of a service: status, whether it says that it is a repeat, body.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    repeated: bool,
    body: serde_json::Value,
}

/// A service, which ends with this value.
struct Service {
    port: u16,
    _process: Child,
}

impl Service {
    async fn start(program: &str, arguments: &[&str], database_url: &str) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        let process = Command::new(program)
            .args(arguments)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .env("DATABASE_URL", database_url)
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| {
                format!("start {program}; 'make setup build' installs and builds what it needs")
            })?;
        let service = Self {
            port,
            _process: process,
        };
        eventually("the service listens", PATIENCE, || {
            TcpStream::connect(("127.0.0.1", port))
        })
        .await?;
        Ok(service)
    }

    async fn ask(&self, tenant: &str, key: Option<&str>, body: &str) -> Result<Answer> {
        let key = key
            .map(|key| format!("Idempotency-Key: {key}\r\n"))
            .unwrap_or_default();
        let request = format!(
            "POST /reservations HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nX-Tenant: {tenant}\r\n{key}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut text = Vec::new();
        tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut text))
            .await
            .context("no answer")??;
        let text = String::from_utf8(text)?;
        let (head, body) = text
            .split_once("\r\n\r\n")
            .with_context(|| format!("not an answer: {text:?}"))?;
        let (from, to) = (body.find('{'), body.rfind('}'));
        let (Some(from), Some(to)) = (from, to) else {
            bail!("no JSON in {text:?}")
        };
        Ok(Answer {
            status: head.split(' ').nth(1).context("a status")?.parse()?,
            repeated: head
                .to_ascii_lowercase()
                .contains("idempotency-replayed: true"),
            body: serde_json::from_str(&body[from..=to])?,
        })
    }
}

/// T-17: two first attempts at once, ten times: one decides, both say the same.
async fn one_of_two_decides(service: &Service) -> Result<()> {
    for number in 0..10 {
        let key = format!("RACE-{number}");
        let one_book = r#"{"item": "book", "quantity": 1}"#;
        let (a, b) = tokio::try_join!(
            service.ask("T-A", Some(&key), one_book),
            service.ask("T-A", Some(&key), one_book)
        )?;
        ensure!(
            a.status == b.status && a.body == b.body && a.repeated != b.repeated,
            "{a:?} {b:?}"
        );
    }
    Ok(())
}

/// T-04, T-11 to T-14, L-28, W-T4, over HTTP, by the calls of the usual driver.
async fn answers_as_it_should(language: &str, program: &str, arguments: &[&str]) -> Result<()> {
    let database = shop(&format!("example_{language}")).await?;
    let mut session = database.connect().await?;
    ground_of_the_example(&mut session).await?;
    run(
        &mut session,
        "insert into shop.stock (item, on_hand, initial) values ('book', 5, 5)",
    )
    .await?;
    let service = Service::start(program, arguments, database.url()).await?;
    let three = r#"{"item": "book", "quantity": 3}"#;

    let first = service.ask("T-A", Some("IDEM-A"), three).await?;
    ensure!(
        first.status == 201 && !first.repeated && first.body["left"] == 2,
        "{first:?}"
    );
    let again = service
        .ask(
            "T-A",
            Some("IDEM-A"),
            r#"{ "quantity": 3, "item": "book" }"#,
        )
        .await?;
    ensure!(
        again
            == Answer {
                repeated: true,
                ..first
            },
        "{again:?}"
    );
    let other = service
        .ask("T-A", Some("IDEM-A"), r#"{"item": "book", "quantity": 4}"#)
        .await?;
    ensure!(other.status == 409, "{other:?}");
    let rejected = service.ask("T-A", Some("IDEM-B"), three).await?;
    ensure!(rejected.status == 422 && !rejected.repeated, "{rejected:?}");
    run(
        &mut session,
        "update shop.stock set on_hand = on_hand + 5, replenished = replenished + 5",
    )
    .await?;
    let still = service.ask("T-A", Some("IDEM-B"), three).await?;
    ensure!(
        still
            == Answer {
                repeated: true,
                ..rejected
            },
        "{still:?}"
    );
    let tenant = service.ask("T-B", Some("IDEM-A"), three).await?;
    ensure!(tenant.status == 201 && !tenant.repeated, "{tenant:?}");
    for (key, body) in [(None, three), (Some("IDEM-C"), "{}")] {
        let wrong = service.ask("T-A", key, body).await?;
        ensure!(wrong.status == 400, "{wrong:?}");
    }
    one_of_two_decides(&service).await?;
    run(&mut session, "select shop.reconcile()").await?;
    let (messages, reservations) = (
        count(&mut session, "postroom.outbox").await?,
        count(&mut session, "shop.reservation").await?,
    );
    let linked: i64 = one(&mut session, "select count(*) from postroom.outbox o join shop.reservation r using (request_id, message_id)").await?;
    ensure!(
        messages == reservations && linked == messages && messages > 2,
        "{messages} messages, {reservations} reservations, {linked} linked"
    );
    Ok(())
}

#[tokio::test]
async fn the_service_in_rust_answers_as_it_should() -> Result<()> {
    let program = postroom_tests::launch::neighbour("postroom-example-reserve")?;
    answers_as_it_should("rust", &program.to_string_lossy(), &[]).await
}

#[tokio::test]
async fn the_service_in_python_answers_as_it_should() -> Result<()> {
    answers_as_it_should(
        "python",
        "/usr/bin/python3",
        &["tests/examples/python/reserve.py"],
    )
    .await
}

#[tokio::test]
async fn the_service_in_go_answers_as_it_should() -> Result<()> {
    answers_as_it_should(
        "go",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../target/examples/reserve-go"),
        &[],
    )
    .await
}

#[tokio::test]
async fn the_service_in_node_answers_as_it_should() -> Result<()> {
    answers_as_it_should("node", "node", &["target/examples/node/reserve.js"]).await
}

#[tokio::test]
async fn the_service_in_java_answers_as_it_should() -> Result<()> {
    let path = "target/examples/java:/usr/share/java/postgresql.jar";
    answers_as_it_should("java", "java", &["-cp", path, "Reserve"]).await
}
