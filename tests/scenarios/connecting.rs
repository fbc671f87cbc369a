//! Wrong addresses, logins and rights: each shows within half a minute with its own reason and a next step, and is over
//! by itself once it is mended.

use anyhow::{Result, ensure};
use postroom_tests::broker::{self, RabbitServer};
use postroom_tests::launch::Launch;
use postroom_tests::postgres::PostgresServer;
use postroom_tests::proxy::TcpProxy;
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::run;
use postroom_tests::setup::{EXCHANGE, OUTBOX, Postroom};
use postroom_tests::worker::Worker;
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::traffic::{RECOVERY, wait_condition, wait_well};

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

async fn all_are_over(cases: &[Case]) -> Result<()> {
    futures::future::try_join_all(cases.iter().map(Case::is_over))
        .await
        .map(drop)
}

async fn all_show(cases: &[Case]) -> Result<()> {
    futures::future::try_join_all(cases.iter().map(Case::shows))
        .await
        .map(drop)
}

/// What is not there yet when a worker needs it.
struct Missing {
    login: String,
    stranger: String,
    database: String,
}

impl Missing {
    fn new() -> Self {
        Self {
            login: run::unique_name("login"),
            stranger: run::unique_name("stranger"),
            database: run::unique_name("later"),
        }
    }
}

async fn execute(postroom: &Postroom, statement: String) -> Result<()> {
    let mut session = postroom.connect().await?;
    session.execute(AssertSqlSafe(statement)).await?;
    Ok(())
}

/// A resource whose schema nobody has made.
fn elsewhere(postroom: &Postroom) -> Result<impl Fn(&str) -> Launch> {
    let file = Resource::new("shop")
        .schema("elsewhere")
        .outbox(Outbox::new(OUTBOX, EXCHANGE))
        .write()?;
    Ok(move |command: &str| {
        Launch::new(&[command, "--resource", &file.to_string_lossy()])
            .database_url(postroom.database.url())
            .amqp_url(postroom.vhost.amqp_url())
    })
}

/// Workers whose connection string of the database is wrong for good.
fn wrong_databases(server: &PostgresServer, postroom: &Postroom) -> Result<Vec<Case>> {
    let (database, right) = (postroom.database.name(), postroom.database.url());
    let port = server.port();
    let urls = [
        (
            right.replace("127.0.0.1", "nowhere.invalid"),
            "HostNotFound",
            "host name",
        ),
        ("postgres://u:p^q G$@[/x".to_owned(), "WrongUrl", "percent"),
        (
            server.url_as(server.user(), "wrong", port, database),
            "AuthenticationFailed",
            "password",
        ),
        (
            right.replace("sslmode=disable", "sslmode=require"),
            "TlsVerificationFailed",
            "tls",
        ),
    ];
    let start = |(url, code, hint)| {
        Case::start(
            &postroom.launch("run").database_url(url),
            DATABASE,
            code,
            hint,
        )
    };
    urls.into_iter().map(start).collect()
}

/// F16's rule for the database: cause by cause.
#[tokio::test]
async fn each_way_not_to_reach_the_database_has_its_own_reason_and_is_over_once_mended()
-> Result<()> {
    let server = PostgresServer::shared().await?;
    let postroom = Postroom::start("db_reasons", |resource| resource).await?;
    let (name, port) = (postroom.database.name(), server.port());
    let proxy = TcpProxy::start(port).await?;
    proxy.refuse().await?;
    let missing = Missing::new();
    let Missing {
        login,
        stranger,
        database,
    } = &missing;
    let create = format!("create role {stranger} login password 'secret'");
    execute(&postroom, create).await?;
    let elsewhere = elsewhere(&postroom)?;
    let at = |url: String| postroom.launch("run").database_url(url);
    let case = |launch: &Launch, code, hint| Case::start(launch, DATABASE, code, hint);
    let as_user = |user: &str| at(server.url_as(user, "secret", port, name));
    let never = wrong_databases(server, &postroom)?;
    let mended = [
        case(
            &at(server.url_at(proxy.port(), name)),
            "ConnectionRefused",
            "port",
        )?,
        case(&as_user(login), "AuthenticationFailed", "user")?,
        case(&at(server.url(database)), "DatabaseNotFound", "Create")?,
        case(&as_user(stranger), "PermissionDenied", "Grant")?,
        case(&elsewhere("run"), "SchemaNotReady", "migrate")?,
    ];
    all_show(&never).await?;
    all_show(&mended).await?;

    proxy.accept().await?;
    for statement in [
        format!("create role {login} login superuser password 'secret'"),
        format!("create database {database}"),
        format!("grant {name}_postroom_worker to {stranger}"),
    ] {
        execute(&postroom, statement).await?;
    }
    elsewhere("migrate").succeed().await?;
    let migrate = postroom
        .launch("migrate")
        .database_url(server.url(database));
    migrate.succeed().await?;
    all_are_over(&mended).await?;
    for case in &never {
        let ready = case.worker.get("/readyz").await?.status;
        ensure!(ready == 503, "{}: {ready}", case.code);
    }
    drop((never, mended));
    execute(&postroom, format!("drop database {database} with (force)")).await
}

/// Workers whose connection string of the broker is wrong for good.
fn wrong_brokers(port: u16, postroom: &Postroom) -> Result<Vec<Case>> {
    let vhost = postroom.vhost.name();
    let urls = [
        (
            postroom
                .vhost
                .amqp_url()
                .replace("127.0.0.1", "nowhere.invalid"),
            "HostNotFound",
            "host name",
        ),
        (
            "amqp://u:a/b:c#d@127.0.0.1".to_owned(),
            "NotAnAmqpUri",
            "percent",
        ),
        (
            broker::url(vhost, "wrong", port, vhost),
            "AccessRefused",
            "password",
        ),
    ];
    let start = |(url, code, hint)| {
        Case::start(&postroom.launch("run").amqp_url(url), TRANSPORT, code, hint)
    };
    urls.into_iter().map(start).collect()
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
    let url = |user: &str, password: &str, vhost: &str| broker::url(user, password, port, vhost);
    let never = wrong_brokers(port, &postroom)?;
    let mended = [
        case(vhost.amqp_url_at(proxy.port()), "ConnectionRefused", "port")?,
        case(url(&later, "secret", user), "AccessRefused", "user")?,
        case(url(user, password, &nowhere), "VhostNotFound", "Create")?,
        case(
            url(user, password, &foreign),
            "VhostNotFound",
            "permissions",
        )?,
    ];
    all_show(&never).await?;
    all_show(&mended).await?;

    proxy.accept().await?;
    let secret = json!({"password": "secret", "tags": ""});
    put(format!("/api/users/{later}"), secret).await?;
    put(format!("/api/vhosts/{nowhere}"), json!({})).await?;
    for (vhost, user) in [(user, later.as_str()), (&nowhere, user), (&foreign, user)] {
        let everything = json!({"configure": ".*", "write": ".*", "read": ".*"});
        put(format!("/api/permissions/{vhost}/{user}"), everything).await?;
    }
    all_are_over(&mended).await?;
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
