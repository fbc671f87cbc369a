//! Servers with certificates of a private authority: trusted where the resource says so, and a clear reason otherwise.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use postroom_tests::broker::{RabbitOptions, RabbitServer};
use postroom_tests::certs::Authority;
use postroom_tests::database::Database;
use postroom_tests::launch::Launch;
use postroom_tests::postgres::{PostgresOptions, PostgresServer};
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::run;
use postroom_tests::setup::{EXCHANGE, OUTBOX, QUEUE};
use postroom_tests::vhost::{QueueArguments, Vhost};
use serde_json::{Value, json};
use sqlx::Executor as _;

use crate::traffic::{PATIENCE, RECOVERY, wait_condition, wait_well};

/// Both servers, with a certificate that names `localhost` and not its address.
struct Servers {
    authority: Authority,
    database: Database,
    database_url: String,
    vhost: Vhost,
}

impl Servers {
    async fn start() -> Result<(Self, PostgresServer, RabbitServer)> {
        let authority = Authority::create()?;
        let certificate = authority.issue("named", "DNS:localhost")?;
        let options = RabbitOptions {
            settings: Vec::new(),
            tls: Some(certificate.clone()),
        };
        let (postgres, rabbit) = tokio::try_join!(
            PostgresServer::start(PostgresOptions::default().tls(&certificate)),
            RabbitServer::start(options)
        )?;
        let vhost = Vhost::create(&rabbit, "tls").await?;
        vhost
            .declare(EXCHANGE, QUEUE, &QueueArguments::classic(), "#")
            .await?;
        let database = Database::create(&postgres, "tls").await?;
        let database_url = database
            .url()
            .split('?')
            .next()
            .unwrap_or_default()
            .to_owned();
        let servers = Self {
            authority,
            database,
            database_url,
            vhost,
        };
        Ok((servers, postgres, rabbit))
    }

    /// `postroom-worker COMMAND` with the given TLS blocks, host name and authority on each side.
    fn launch(&self, command: &str, sides: [Side<'_>; 2]) -> Result<Launch> {
        let [database, broker] = sides;
        let file = Resource::new("shop")
            .outbox(Outbox::new(OUTBOX, EXCHANGE))
            .with("database.tls", database.tls())
            .with("transports.0.rabbitmq.tls", broker.tls())
            .write()?;
        let mut launch = Launch::new(&[command, "--resource", &file.to_string_lossy()])
            .database_url(self.database_url.replace("127.0.0.1", database.host))
            .amqp_url(self.vhost.amqps_url().replace("127.0.0.1", broker.host));
        for (side, name) in [(database, "DATABASE"), (broker, "AMQP")] {
            if let Some(authority) = side.authority {
                let name = format!("POSTROOM_{name}_CA_FILE");
                launch = launch.env(&name, authority.to_string_lossy());
            }
        }
        Ok(launch)
    }
}

/// How one connection is made.
#[derive(Clone, Copy)]
struct Side<'a> {
    mode: &'a str,
    host: &'a str,
    authority: Option<&'a Path>,
}

impl Side<'_> {
    fn tls(&self) -> Value {
        match self.authority {
            Some(_) => json!({"mode": self.mode, "caSecretRef": {"name": "ca"}}),
            None => json!({"mode": self.mode}),
        }
    }
}

fn trusting(authority: &Path) -> Side<'_> {
    Side {
        mode: "VerifyFull",
        host: "localhost",
        authority: Some(authority),
    }
}

/// F18: with the authority named it works; without it, or with another one, or for another host, the reason says so;
/// and an authority that is corrected while the worker runs is taken up by itself.
#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_named_and_its_absence_is_named_as_the_reason()
-> Result<()> {
    let (servers, _postgres, _rabbit) = Servers::start().await?;
    let right = servers.authority.certificate();
    let good = trusting(&right);
    servers.launch("migrate", [good; 2])?.succeed().await?;
    let foreign = Authority::create()?;
    let changing = run::new_folder("changing")?.join("ca.crt");
    fs::copy(foreign.certificate(), &changing)?;
    let start = |sides| servers.launch("run", sides)?.start();
    let untrusted = Side {
        authority: None,
        ..good
    };
    let misnamed = Side {
        host: "127.0.0.1",
        ..good
    };
    let works = start([good; 2])?;
    let wrong = [
        (start([untrusted, untrusted])?, "issuer"),
        (start([misnamed, misnamed])?, "name"),
        (start([trusting(&changing); 2])?, "invalid peer certificate"),
    ];
    works.ready(PATIENCE).await?;
    let receiver = servers.vhost.receive(&[QUEUE]).await?;
    let insert =
        "insert into postroom.outbox (endpoint, type, payload) values ('orders', 't', '1')";
    servers.database.connect().await?.execute(insert).await?;
    receiver.wait_for(1, PATIENCE).await?;
    wait_well(&works).await?;
    for (worker, word) in &wrong {
        for scope in ["database", "transport"] {
            let shown = wait_condition(worker, scope, "TlsVerificationFailed").await?;
            let (message, step) = (shown["message"].to_string(), shown["nextStep"].to_string());
            let said = message.to_lowercase();
            ensure!(
                said.contains(word)
                    || said.contains("notvalidforname")
                    || said.contains("not valid for"),
                "the reason names {word}: {shown}"
            );
            ensure!(
                step.contains("caSecretRef") && step.contains("host"),
                "the next step names both: {shown}"
            );
        }
    }
    fs::copy(&right, &changing)?;
    let (mended, _) = &wrong[2];
    mended.ready(RECOVERY).await?;
    wait_well(mended).await?;
    for (worker, _) in &wrong[..2] {
        ensure!(worker.get("/readyz").await?.status == 503, "never ready");
    }
    Ok(())
}

/// The other modes of the database: encrypted without a check, and a check without the name.
#[tokio::test]
async fn require_takes_any_certificate_of_the_database_and_verify_ca_any_name() -> Result<()> {
    let (servers, _postgres, _rabbit) = Servers::start().await?;
    let right = servers.authority.certificate();
    let good = trusting(&right);
    servers.launch("migrate", [good; 2])?.succeed().await?;
    let any_certificate = Side {
        mode: "Require",
        host: "127.0.0.1",
        authority: None,
    };
    let any_name = Side {
        mode: "VerifyCA",
        host: "127.0.0.1",
        authority: Some(&right),
    };
    for side in [any_certificate, any_name] {
        let worker = servers.launch("run", [side, good])?.start()?;
        worker.ready(PATIENCE).await?;
        wait_well(&worker).await?;
        let up = worker.metric("postroom_transport_up", &[]).await?;
        ensure!(up == Some(1.0), "{}: {up:?}", side.mode);
    }
    Ok(())
}
