//! Wrong addresses, logins and rights: each shows within half a minute with its own reason and a next step, and is over
//! by itself once it is mended.

use anyhow::{Result, ensure};
use postroom_tests::broker::{self, RabbitServer};
use postroom_tests::database::Database;
use postroom_tests::launch::Launch;
use postroom_tests::postgres::{self, PostgresServer};
use postroom_tests::proxy::TcpProxy;
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::run;
use postroom_tests::setup::{EXCHANGE, OUTBOX, Postroom, QUEUE};
use postroom_tests::worker::Worker;
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::traffic::{PATIENCE, RECOVERY, wait_condition, wait_well};

const DATABASE: &str = "database";
const TRANSPORT: &str = "transport";

/// A worker that cannot connect, and what it must say about it.
struct Case {
    worker: Worker,
    scope: &'static str,
    code: &'static str,
    /// A word of the next step.
    hint: &'static str,
}

impl Case {
    fn start(
        launch: &Launch,
        scope: &'static str,
        code: &'static str,
        hint: &'static str,
    ) -> Result<Self> {
        let worker = launch.start()?;
        Ok(Self {
            worker,
            scope,
            code,
            hint,
        })
    }

    /// It lives, is not ready where the database is missing, and says why and what to do.
    async fn shows(&self) -> Result<()> {
        let shown = wait_condition(&self.worker, self.scope, self.code).await?;
        let step = shown["nextStep"].as_str().unwrap_or_default();
        ensure!(step.contains(self.hint), "{shown}");
        ensure!(self.worker.get("/livez").await?.status == 200, "{shown}");
        let (ready, stats) = (
            self.worker.get("/readyz").await?.status,
            self.worker.stats().await?,
        );
        if self.scope == DATABASE {
            ensure!(
                ready == 503 && stats.0 == 503,
                "{} {ready} {}",
                self.code,
                stats.0
            );
            ensure!(
                stats.1["endpoints"][0]["pending"].is_null(),
                "unknown is not zero: {}",
                stats.1
            );
        }
        Ok(())
    }

    async fn is_over(&self) -> Result<()> {
        self.worker.ready(RECOVERY).await?;
        wait_well(&self.worker).await.map(drop)
    }
}

async fn all_show(cases: &[Case]) -> Result<()> {
    futures::future::try_join_all(cases.iter().map(Case::shows))
        .await
        .map(drop)
}

/// F16's rule for the database, F47's neighbour: cause by cause.
#[tokio::test]
async fn each_way_not_to_reach_the_database_has_its_own_reason_and_is_over_once_mended()
-> Result<()> {
    let server = PostgresServer::shared().await?;
    let postroom = Postroom::start("db_reasons", |resource| resource).await?;
    let (database, port) = (postroom.database.name(), server.port());
    let proxy = TcpProxy::start(port).await?;
    proxy.refuse().await?;
    let (login, stranger, later) = (
        run::unique_name("login"),
        run::unique_name("stranger"),
        run::unique_name("later"),
    );
    let mut session = postroom.connect().await?;
    let create = format!("create role {stranger} login password 'secret'");
    session.execute(AssertSqlSafe(create)).await?;
    let elsewhere = Resource::new("shop")
        .schema("elsewhere")
        .outbox(Outbox::new(OUTBOX, EXCHANGE))
        .write()?;
    let elsewhere = |command: &str| {
        Launch::new(&[command, "--resource", &elsewhere.to_string_lossy()])
            .database_url(postroom.database.url())
            .amqp_url(postroom.vhost.amqp_url())
    };
    let at = |url: String| postroom.launch("run").database_url(url);
    let right = server.url(database);
    let case = |launch: &Launch, code, hint| Case::start(launch, DATABASE, code, hint);
    let never = [
        case(
            &at(right.replace("127.0.0.1", "nowhere.invalid")),
            "HostNotFound",
            "host name",
        )?,
        case(
            &at("postgres://u:p^q G$@[/x".to_owned()),
            "WrongUrl",
            "percent",
        )?,
        case(
            &at(server.url_as(server.user(), "wrong", port, database)),
            "AuthenticationFailed",
            "password",
        )?,
        case(
            &at(right.replace("sslmode=disable", "sslmode=require")),
            "TlsVerificationFailed",
            "tls",
        )?,
    ];
    let mended = [
        case(
            &at(server.url_at(proxy.port(), database)),
            "ConnectionRefused",
            "port",
        )?,
        case(
            &at(server.url_as(&login, "secret", port, database)),
            "AuthenticationFailed",
            "user",
        )?,
        case(&at(server.url(&later)), "DatabaseNotFound", "Create")?,
        case(
            &at(server.url_as(&stranger, "secret", port, database)),
            "PermissionDenied",
            "Grant",
        )?,
        case(&elsewhere("run"), "SchemaNotReady", "migrate")?,
    ];
    all_show(&never).await?;
    all_show(&mended).await?;

    proxy.accept().await?;
    let create = format!("create role {login} login superuser password 'secret'");
    session.execute(AssertSqlSafe(create)).await?;
    let create = format!("create database {later} template {database}");
    // A database in use cannot be copied; so it is made empty and migrated.
    let create = create
        .split(" template")
        .next()
        .unwrap_or_default()
        .to_owned();
    session.execute(AssertSqlSafe(create)).await?;
    let grant = format!("grant {database}_postroom_worker to {stranger}");
    session.execute(AssertSqlSafe(grant)).await?;
    elsewhere("migrate").succeed().await?;
    postroom
        .launch("migrate")
        .database_url(server.url(&later))
        .succeed()
        .await?;
    futures::future::try_join_all(mended.iter().map(Case::is_over)).await?;
    for case in &never {
        ensure!(
            case.worker.get("/readyz").await?.status == 503,
            "{}",
            case.code
        );
    }
    drop((never, mended));
    let drop = format!("drop database {later} with (force)");
    session.execute(AssertSqlSafe(drop)).await?;
    Ok(())
}

/// F16: causes are told apart, and a virtual host may come later.
#[tokio::test]
async fn each_way_not_to_reach_the_broker_has_its_own_reason_and_is_over_once_mended() -> Result<()>
{
    let server = RabbitServer::shared().await?;
    let management = server.management();
    let postroom = Postroom::start("mq_reasons", |resource| resource).await?;
    let proxy = TcpProxy::start(server.port()).await?;
    proxy.refuse().await?;
    let vhost = &postroom.vhost;
    let (user, password, port) = (vhost.name(), vhost.password(), server.port());
    let (nowhere, foreign, later) = (
        run::unique_name("nowhere"),
        run::unique_name("foreign"),
        run::unique_name("later"),
    );
    let put = async |path: String, body: serde_json::Value| {
        let answer = management.request("PUT", &path, Some(&body)).await?;
        answer.success().map(drop)
    };
    put(format!("/api/vhosts/{foreign}"), json!({})).await?;
    let at = |url: String| postroom.launch("run").amqp_url(url);
    let case = |url: String, code, hint| Case::start(&at(url), TRANSPORT, code, hint);
    let right = vhost.amqp_url();
    let never = [
        case(
            right.replace("127.0.0.1", "nowhere.invalid"),
            "HostNotFound",
            "host name",
        )?,
        case(
            "amqp://u:a/b:c#d@127.0.0.1".to_owned(),
            "NotAnAmqpUri",
            "percent",
        )?,
        case(
            broker::url(user, "wrong", port, user),
            "AccessRefused",
            "password",
        )?,
    ];
    let mended = [
        case(vhost.amqp_url_at(proxy.port()), "ConnectionRefused", "port")?,
        case(
            broker::url(&later, "secret", port, user),
            "AccessRefused",
            "user",
        )?,
        case(
            broker::url(user, password, port, &nowhere),
            "VhostNotFound",
            "Create",
        )?,
        case(
            broker::url(user, password, port, &foreign),
            "VhostNotFound",
            "permissions",
        )?,
    ];
    all_show(&never).await?;
    all_show(&mended).await?;

    let everything = json!({"configure": ".*", "write": ".*", "read": ".*"});
    proxy.accept().await?;
    put(
        format!("/api/users/{later}"),
        json!({"password": "secret", "tags": ""}),
    )
    .await?;
    put(
        format!("/api/permissions/{user}/{later}"),
        everything.clone(),
    )
    .await?;
    put(format!("/api/vhosts/{nowhere}"), json!({})).await?;
    for vhost in [&nowhere, &foreign] {
        put(
            format!("/api/permissions/{vhost}/{user}"),
            everything.clone(),
        )
        .await?;
    }
    futures::future::try_join_all(mended.iter().map(Case::is_over)).await?;
    drop((never, mended));
    for path in [
        format!("/api/vhosts/{nowhere}"),
        format!("/api/vhosts/{foreign}"),
        format!("/api/users/{later}"),
    ] {
        management.request("DELETE", &path, None).await?.success()?;
    }
    Ok(())
}

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

/// F17.
#[tokio::test]
async fn reserved_characters_in_user_password_and_vhost_work_where_they_are_percent_encoded()
-> Result<()> {
    let (postgres, rabbit) = tokio::try_join!(PostgresServer::shared(), RabbitServer::shared())?;
    let management = rabbit.management();
    let (user, vhost) = (encoded(ODD_USER), encoded(ODD_VHOST));
    for (path, body) in [
        (format!("/api/vhosts/{vhost}"), json!({})),
        (
            format!("/api/users/{user}"),
            json!({"password": ODD_PASSWORD, "tags": ""}),
        ),
        (
            format!("/api/permissions/{vhost}/{user}"),
            json!({"configure": ".*", "write": ".*", "read": ".*"}),
        ),
    ] {
        management
            .request("PUT", &path, Some(&body))
            .await?
            .success()?;
    }
    let broker = format!(
        "amqp://{user}:{}@127.0.0.1:{}",
        encoded(ODD_PASSWORD),
        rabbit.port()
    );
    let whole = format!("{broker}/{vhost}");
    let queue_of_its_own = postroom_tests::receiver::Receiver::start;
    declare(&whole).await?;
    let receiver = queue_of_its_own(&whole, &[QUEUE], PATIENCE).await?;

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
        management.request("DELETE", &path, None).await?.success()?;
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
