//! `cluster`: the steps on Kubernetes, from a cluster without Postroom to the table.

mod ground;
mod guide;
mod progress;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use postroom_tests::address;
use postroom_tests::kubectl;

use crate::cluster::ground::{Ground, Urls};
use crate::day::Day;
use crate::report::Report;
use crate::servers::{Kept, Servers};
use crate::shop::{Books, SESSIONS};
use crate::steps::Steps;
use crate::{place, session};

const OWN_STEPS: usize = 7;

/// Where the chart is installed, and under which name.
const SYSTEM: &str = "postroom-system";
const RELEASE: &str = "postroom";

/// Runs the demo on the cluster that kubectl talks to.
#[derive(Debug, clap::Args)]
pub(crate) struct Cluster {
    /// How many steps have been taken already, for the numbers that are shown
    #[arg(long, env = "POSTROOM_STEPS_BEFORE", default_value_t = 0)]
    steps_before: usize,
    /// How long the shop takes orders
    #[arg(long, env = "POSTROOM_DEMO_SECONDS", default_value_t = 16, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(4..=3600))]
    seconds: u64,
    /// The image, where it is not the one the chart asks for
    #[arg(long, env = "POSTROOM_IMAGE", value_name = "NAME:TAG")]
    image: Option<String>,
    /// An empty database that both this program and pods reach, with a login that owns it; without it a server is started
    #[arg(
        long,
        env = "DEMO_DATABASE_URL",
        value_name = "URL",
        requires = "amqp_url",
        hide_env_values = true
    )]
    database_url: Option<String>,
    /// A virtual host that both reach, with a login that may do everything in it
    #[arg(
        long,
        env = "DEMO_AMQP_URL",
        value_name = "URL",
        requires = "database_url",
        hide_env_values = true
    )]
    amqp_url: Option<String>,
}

/// Whether the cluster is the one of this machine, that we are inside of.
fn is_own() -> bool {
    !address::servers().is_loopback()
}

/// Runs the demo; the cluster stays as it is, also when a step fails.
pub(crate) fn cluster(flags: &Cluster) -> Result<ExitCode> {
    let mut steps = Steps::new(flags.steps_before, OWN_STEPS);
    session::run(
        &mut steps,
        async |steps| demo(steps, flags).await,
        guide::after_failure,
    )
}

/// All steps. False: it came to its end, and something is not as it must be.
async fn demo(steps: &mut Steps, flags: &Cluster) -> Result<bool> {
    place::remove()?;
    place::create()?;
    let (servers, urls) = servers(steps, flags).await?;

    steps.begin(
        "Install the chart: 'helm install postroom charts/postroom'",
        "read what helm says; 'make demo-down' removes everything, then run 'make demo' again",
    )?;
    steps.note(&install(flags).await?)?;
    steps.done("")?;

    steps.begin(
        "Apply the resource: 'kubectl apply --filename tests/demo/shop.yaml'",
        "read the conditions: kubectl describe inboxoutbox shop --namespace shop",
    )?;
    let ground = Ground::prepare(urls).await?;
    progress::until_ready(steps, &ground.kubectl).await?;
    ground.install_billing().await?;
    steps.done("the other service has created its handler, billing.book")?;
    steps.show(&ground.look().await?)?;

    steps.begin(
        "Open the shop; kill a worker in the middle",
        "look into the logs; if it is a fault of Postroom, report it with them",
    )?;
    let receiver = ground.receiver().await?;
    let books = Arc::new(Books::default());
    let day = Day {
        books: &books,
        pool: ground.pool(SESSIONS).await?,
        receiver: &receiver,
        length: Duration::from_secs(flags.seconds),
    };
    let ((), kill) = day
        .business(steps, async |steps| {
            steps.note(&ground.kill_a_worker(is_own()).await?)
        })
        .await?;
    steps.done(&day.summary())?;

    steps.begin(
        "Wait for what has not arrived, and for what should not arrive",
        "look into the workers' logs: kubectl logs deployment/shop-worker --namespace shop",
    )?;
    let received = day.arrivals(steps).await?;
    steps.done("")?;

    steps.begin(
        "Deliver some of it again to the inbox of the other service; count its invoices",
        "look into the workers' logs: kubectl logs deployment/shop-worker --namespace shop",
    )?;
    let invoices = ground.invoices(steps, &received).await?;
    let report = Report::new(&books, &received, ground.counts().await?, invoices, kill);
    steps.done("")?;

    steps.begin(
        "Wait until the resource shows it (its numbers are at most half a minute old)",
        "read the conditions: kubectl describe inboxoutbox shop --namespace shop",
    )?;
    progress::until_settled(&ground.kubectl).await?;
    steps.done("")?;
    steps.show(&ground.look().await?)?;
    guide::show(steps, &report, &ground, servers.as_deref())
}

/// The servers of the demo: those that were given, or two of our own.
async fn servers(steps: &mut Steps, flags: &Cluster) -> Result<(Option<Kept<Servers>>, Urls)> {
    let given = flags.database_url.clone().zip(flags.amqp_url.clone());
    if let Some((database, amqp)) = given {
        steps.begin("Use the servers that were named", "")?;
        steps.done("a database and a virtual host")?;
        return Ok((None, Urls { database, amqp }));
    }
    steps.begin(
        "Start PostgreSQL and RabbitMQ",
        "look into the logs, see that memory and disk suffice, then run 'make demo' again",
    )?;
    let servers = Servers::start().await?;
    let urls = Urls::on(&servers).await?;
    steps.done("a database and a virtual host, where pods reach them")?;
    Ok((Some(servers), urls))
}

/// Installs or upgrades the chart; returns where the operator is.
async fn install(flags: &Cluster) -> Result<String> {
    let mut arguments = vec![
        "upgrade",
        "--install",
        RELEASE,
        "charts/postroom",
        "--namespace",
        SYSTEM,
        "--create-namespace",
        "--wait",
        "--timeout",
        "2m",
    ];
    let image = flags.image.as_deref().map(image_values).transpose()?;
    if let Some(values) = &image {
        arguments.extend(["--set", values]);
    }
    kubectl::helm(&arguments).await?;
    Ok(format!("the operator is ready, in namespace {SYSTEM}"))
}

/// `image.repository` and `image.tag` for helm. A port in the name is not a tag.
fn image_values(image: &str) -> Result<String> {
    let (name, tag) = image
        .rsplit_once(':')
        .filter(|(_, tag)| !tag.contains('/'))
        .with_context(|| format!("the image '{image}' has no tag: write NAME:TAG"))?;
    Ok(format!("image.repository={name},image.tag={tag}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_tag_of_an_image_are_told_apart() {
        for (image, values) in [
            ("postroom:1", "image.repository=postroom,image.tag=1"),
            (
                "host:5000/a/b:v2",
                "image.repository=host:5000/a/b,image.tag=v2",
            ),
        ] {
            assert_eq!(image_values(image).unwrap(), values);
        }
        assert!(image_values("host:5000/postroom").is_err());
        assert!(image_values("postroom").is_err());
    }
}
