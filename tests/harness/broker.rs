//! RabbitMQ servers that a test may stop, kill and start again.

mod node;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lapin::{Connection, ConnectionProperties};
use tokio::sync::OnceCell;

use crate::address;
use crate::certs::Certificate;
use crate::http::Client;
use crate::process::{Process, Signal};
use node::Node;

/// A start takes 5 to 10 seconds on two idle cores, and tests share them.
const PATIENCE: Duration = Duration::from_secs(120);

static SHARED: OnceCell<RabbitServer> = OnceCell::const_new();

/// How to start a broker.
#[derive(Debug, Default, Clone)]
pub struct RabbitOptions {
    /// Further lines of rabbitmq.conf.
    pub settings: Vec<String>,
    /// Offers TLS with this certificate on a port of its own.
    pub tls: Option<Certificate>,
}

/// A broker with ports, a node name and a data folder of its own.
#[derive(Debug)]
pub struct RabbitServer {
    node: Node,
    process: Mutex<Option<Process>>,
    /// Erlang's name service; started here, else the first node would start one that outlives it.
    _names: Process,
}

impl RabbitServer {
    /// The broker that tests share when they do not hurt it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn shared() -> Result<&'static Self> {
        SHARED
            .get_or_try_init(|| Self::start(RabbitOptions::default()))
            .await
    }

    /// Starts a broker of the test's own.
    ///
    /// # Errors
    /// When it is not there within two minutes; the message shows the end of its log.
    pub async fn start(options: RabbitOptions) -> Result<Self> {
        let node = Node::create(&options)?;
        let names = Process::spawn("epmd", &mut node.name_service()?, &node.file("epmd.log"))?;
        let server = Self {
            node,
            process: Mutex::new(None),
            _names: names,
        };
        server.start_again().await?;
        Ok(server)
    }

    /// Starts it after [`Self::stop`] or [`Self::kill_9`], on the same ports and data, and waits until it answers.
    ///
    /// # Errors
    /// When it is not there within two minutes.
    pub async fn start_again(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let process = Process::spawn(
            "rabbitmq-server",
            &mut self.node.program("rabbitmq-server")?,
            &self.node.file("server.log"),
        )?;
        *self.slot() = Some(process);
        loop {
            let Err(refused) = self.answers().await else {
                return Ok(());
            };
            if let Some(status) = self.with_process(Process::exited)? {
                bail!(
                    "RabbitMQ ended with {status}; its log ends:\n{}",
                    self.log_tail()?
                );
            }
            if Instant::now() >= end {
                bail!(
                    "RabbitMQ does not answer: {refused:#}; its log ends:\n{}",
                    self.log_tail()?
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn answers(&self) -> Result<()> {
        self.management().get("/api/vhosts").await?.success()?;
        let connection = connect(&self.url("/")).await?;
        connection
            .close(200, "OK".into())
            .await
            .context("close the connection")
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Process>> {
        self.process
            .lock()
            .expect("no panic while a server is started")
    }

    fn with_process<T>(&self, act: impl FnOnce(&Process) -> Result<T>) -> Result<T> {
        act(self.slot().as_ref().context("RabbitMQ was not started")?)
    }

    fn log_tail(&self) -> Result<String> {
        self.with_process(|process| Ok(process.log_tail(20)))
    }

    async fn end(&self, signal: Signal) -> Result<()> {
        self.with_process(|process| process.signal(signal))?;
        let Some(process) = self.slot().take() else {
            return Ok(());
        };
        process.wait_exit(PATIENCE).await.map(drop)
    }

    /// Stops it in good order.
    ///
    /// # Errors
    /// When it is still there after two minutes.
    pub async fn stop(&self) -> Result<()> {
        self.end(Signal::Term).await
    }

    /// Kills it.
    ///
    /// # Errors
    /// When it was not running.
    pub async fn kill_9(&self) -> Result<()> {
        self.end(Signal::Kill).await
    }

    /// Stops it in good order and starts it again.
    ///
    /// # Errors
    /// When either takes more than two minutes.
    pub async fn restart(&self) -> Result<()> {
        self.stop().await?;
        self.start_again().await
    }

    /// Its process number; none while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.slot().as_ref().map(Process::pid)
    }

    /// Its AMQP port.
    pub fn port(&self) -> u16 {
        self.node.ports.amqp
    }

    /// Its port for AMQP over TLS, when started with a certificate.
    pub fn tls_port(&self) -> u16 {
        self.node.ports.amqps
    }

    /// Its port for the management API and its pages.
    pub fn management_port(&self) -> u16 {
        self.node.ports.management
    }

    /// The password of the administrator, who is called `postroom`.
    pub fn password(&self) -> &str {
        &self.node.password
    }

    /// The management API, as administrator.
    pub fn management(&self) -> Client {
        Client::with_login(self.node.ports.management, "postroom", &self.node.password)
    }

    /// A connection string for the administrator.
    pub fn url(&self, vhost: &str) -> String {
        url("postroom", &self.node.password, self.port(), vhost)
    }

    /// Runs `rabbitmqctl`; takes a second or two.
    ///
    /// # Errors
    /// When it fails or takes more than a minute.
    pub async fn control(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.node.program("rabbitmqctl")?;
        command.args(arguments);
        let output = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(Duration::from_secs(60), output).await;
        let output = output
            .context("rabbitmqctl takes more than a minute")?
            .context("run rabbitmqctl")?;
        if !output.status.success() {
            bail!(
                "rabbitmqctl {arguments:?}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Raises or clears the memory alarm; while it is on, the broker reads nothing from connections that publish.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn set_memory_alarm(&self, on: bool) -> Result<()> {
        let alarm = "{resource_limit, memory, node()}";
        let call = if on {
            format!("rabbit_alarm:set_alarm({{{alarm}, []}}).")
        } else {
            format!("rabbit_alarm:clear_alarm({alarm}).")
        };
        self.control(&["eval", &call]).await.map(drop)
    }

    /// Closes all client connections to a virtual host from the broker's side.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn close_all_connections(&self, vhost: &str) -> Result<()> {
        self.control(&[
            "close_all_connections",
            "--vhost",
            vhost,
            "closed by a test",
        ])
        .await
        .map(drop)
    }
}

/// A connection string for a server of this run.
pub fn url(user: &str, password: &str, port: u16, vhost: &str) -> String {
    let vhost = vhost.replace('%', "%25").replace('/', "%2f");
    let address = address::servers();
    format!("amqp://{user}:{password}@{address}:{port}/{vhost}")
}

/// A connection by connection string.
///
/// # Errors
/// When there is none within ten seconds.
pub async fn connect(url: &str) -> Result<Connection> {
    let connection = Connection::connect(url, ConnectionProperties::default());
    let connection = tokio::time::timeout(Duration::from_secs(10), connection).await;
    connection
        .context("RabbitMQ does not answer within ten seconds")?
        .context("connect to RabbitMQ")
}
