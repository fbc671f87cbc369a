//! Names and passwords with characters that mean something in a URL.

use anyhow::Result;
use postroom_tests::broker::{self, RabbitServer};
use postroom_tests::database::Database;
use postroom_tests::launch::Launch;
use postroom_tests::postgres::{self, PostgresServer};
use postroom_tests::receiver::Receiver;
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::setup::{EXCHANGE, OUTBOX, QUEUE};
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::traffic::{PATIENCE, wait_well};

const ODD_USER: &str = "svc@eu";
const ODD_PASSWORD: &str = "a/b:c#d%e?f ü$";
const ODD_VHOST: &str = "/team/a";

fn encoded(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(byte).collect()
}

async fn create_in_broker(rabbit: &RabbitServer, user: &str, vhost: &str) -> Result<()> {
    let everything = json!({"configure": ".*", "write": ".*", "read": ".*"});
    for (path, body) in [
        (format!("/api/vhosts/{vhost}"), json!({})),
        (
            format!("/api/users/{user}"),
            json!({"password": ODD_PASSWORD, "tags": ""}),
        ),
        (format!("/api/permissions/{vhost}/{user}"), everything),
    ] {
        let management = rabbit.management();
        let answer = management.request("PUT", &path, Some(&body)).await?;
        answer.success()?;
    }
    Ok(())
}

/// F17.
#[tokio::test]
async fn reserved_characters_in_user_password_and_vhost_work_where_they_are_percent_encoded()
-> Result<()> {
    let (postgres, rabbit) = tokio::try_join!(PostgresServer::shared(), RabbitServer::shared())?;
    let (user, vhost) = (encoded(ODD_USER), encoded(ODD_VHOST));
    create_in_broker(rabbit, &user, &vhost).await?;
    let broker = format!(
        "amqp://{user}:{}@127.0.0.1:{}",
        encoded(ODD_PASSWORD),
        rabbit.port()
    );
    let whole = format!("{broker}/{vhost}");
    declare(&whole).await?;
    let receiver = Receiver::start(&whole, &[QUEUE], PATIENCE).await?;

    let database = Database::create(postgres, "odd").await?;
    let login = format!(
        "create role \"{ODD_USER}\" login createrole password '{ODD_PASSWORD}'; grant create on database {0} to \"{ODD_USER}\"",
        database.name()
    );
    let mut session = database.connect().await?;
    session.execute(AssertSqlSafe(login)).await?;
    let url = postgres.url_as(
        &user,
        &encoded(ODD_PASSWORD),
        postgres.port(),
        database.name(),
    );
    // Once from the URL, once from the field of the resource.
    for (amqp, vhost) in [(whole.clone(), None), (broker, Some(ODD_VHOST))] {
        let mut resource = Resource::new("shop").outbox(Outbox::new(OUTBOX, EXCHANGE));
        if let Some(vhost) = vhost {
            resource = resource.with("transports.0.rabbitmq.vhost", vhost);
        }
        let file = resource.write()?;
        let launch = |command: &str| {
            Launch::new(&[command, "--resource", &file.to_string_lossy()])
                .database_url(&url)
                .amqp_url(&amqp)
        };
        launch("migrate").succeed().await?;
        let worker = launch("run").start()?;
        worker.ready(PATIENCE).await?;
        let before = receiver.distinct();
        let insert =
            "insert into postroom.outbox (endpoint, type, payload) values ('orders', 't', '1')";
        session.execute(insert).await?;
        receiver.wait_for(before + 1, PATIENCE).await?;
        wait_well(&worker).await?;
    }
    drop(receiver);
    for path in [format!("/api/vhosts/{vhost}"), format!("/api/users/{user}")] {
        let gone = rabbit.management().request("DELETE", &path, None).await?;
        gone.success()?;
    }
    let drop = format!("drop owned by \"{ODD_USER}\" cascade");
    session.execute(AssertSqlSafe(drop)).await?;
    let mut session = postgres::connect(&postgres.url("postgres")).await?;
    let revoke = format!(
        "revoke all on database {} from \"{ODD_USER}\"",
        database.name()
    );
    session.execute(AssertSqlSafe(revoke)).await?;
    Ok(())
}

/// The exchange and the queue of the scenario, in a virtual host that the harness cannot name.
async fn declare(url: &str) -> Result<()> {
    let connection = broker::connect(url).await?;
    let channel = connection.create_channel().await?;
    let none = lapin::types::FieldTable::default;
    let options = lapin::options::ExchangeDeclareOptions {
        durable: true,
        ..Default::default()
    };
    channel
        .exchange_declare(EXCHANGE.into(), lapin::ExchangeKind::Topic, options, none())
        .await?;
    let options = lapin::options::QueueDeclareOptions {
        durable: true,
        ..Default::default()
    };
    channel.queue_declare(QUEUE.into(), options, none()).await?;
    let options = lapin::options::QueueBindOptions::default();
    channel
        .queue_bind(QUEUE.into(), EXCHANGE.into(), "#".into(), options, none())
        .await?;
    Ok(())
}
