//! PostgreSQL servers that a test may stop, kill and start again.
//!
//! Durability is left on: a server that forgets commits in a crash would make every test about loss worthless.

mod data;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};
use tokio::sync::OnceCell;

use crate::certs::Certificate;
use crate::flavour::{Flavour, User};
use crate::process::{Process, Signal, tail};
use crate::{address, ports, run};

/// How long a start, with crash recovery, or a stop may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

static SHARED: OnceCell<PostgresServer> = OnceCell::const_new();

/// How to start a server.
#[derive(Debug, Default, Clone)]
pub struct PostgresOptions {
    settings: Vec<(String, String)>,
    tls: Option<Certificate>,
}

impl PostgresOptions {
    /// Adds or overrides a line of postgresql.conf.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Offers TLS with this certificate; connections without it are refused.
    #[must_use]
    pub fn tls(mut self, certificate: &Certificate) -> Self {
        self.tls = Some(certificate.clone());
        self
    }
}

/// What happens to sessions when a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Sessions end, everything is written.
    Fast,
    /// As a crash of the server, without one of the machine.
    Immediate,
}

/// A server with a data folder and a port of its own.
#[derive(Debug)]
pub struct PostgresServer {
    folder: PathBuf,
    port: u16,
    tls: bool,
    process: Mutex<Option<Process>>,
}

impl PostgresServer {
    /// The server that tests share when they do not hurt it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn shared() -> Result<&'static Self> {
        SHARED
            .get_or_try_init(|| Self::start(PostgresOptions::default()))
            .await
    }

    /// Starts a server of the test's own.
    ///
    /// # Errors
    /// When it is not there within a minute; the message shows the end of its log.
    pub async fn start(options: PostgresOptions) -> Result<Self> {
        let folder = run::new_folder("postgres")?;
        Flavour::current().give(User::Postgres, &folder)?;
        let server = Self {
            port: ports::free()?,
            tls: options.tls.is_some(),
            folder,
            process: Mutex::new(None),
        };
        data::create(&server.data(), server.port, &options).await?;
        server.start_again().await?;
        Ok(server)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts it after [`Self::stop`] or [`Self::kill_9`], on the same port and data, and waits until it answers.
    ///
    /// # Errors
    /// When it is not there within a minute.
    pub async fn start_again(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let flavour = Flavour::current();
            let mut command =
                flavour.command(User::Postgres, &flavour.postgres_program("postgres"))?;
            command.arg("-D").arg(self.data());
            let process = Process::spawn("postgres", &mut command, &self.log_file())?;
            *self.slot() = Some(process);
            if self.answers(end).await? {
                return Ok(());
            }
            // After a kill the old sessions hold the shared memory for a moment, and a new server refuses to start.
            if Instant::now() >= end {
                bail!(
                    "PostgreSQL does not start; its log ends:\n{}",
                    self.log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// True: it answers. False: it has ended.
    async fn answers(&self, end: Instant) -> Result<bool> {
        loop {
            let refused = match self.connect("postgres").await {
                Ok(connection) => {
                    connection.close().await?;
                    return Ok(true);
                }
                Err(error) => error,
            };
            if self.with_process(Process::exited)?.is_some() {
                return Ok(false);
            }
            if Instant::now() >= end {
                bail!(
                    "PostgreSQL does not answer: {refused:#}; its log ends:\n{}",
                    self.log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Process>> {
        self.process
            .lock()
            .expect("no panic while a server is started")
    }

    fn with_process<T>(&self, act: impl FnOnce(&Process) -> Result<T>) -> Result<T> {
        act(self.slot().as_ref().context("PostgreSQL was not started")?)
    }

    async fn end(&self, signal: Signal) -> Result<()> {
        self.with_process(|process| process.signal(signal))?;
        let Some(process) = self.slot().take() else {
            return Ok(());
        };
        process.wait_exit(PATIENCE).await.map(drop)
    }

    /// Stops it and waits for its end.
    ///
    /// # Errors
    /// When it is still there after a minute.
    pub async fn stop(&self, mode: StopMode) -> Result<()> {
        self.end(match mode {
            StopMode::Fast => Signal::Int,
            StopMode::Immediate => Signal::Quit,
        })
        .await
    }

    /// Kills the postmaster, as the machine's memory killer would.
    ///
    /// # Errors
    /// When it was not running.
    pub async fn kill_9(&self) -> Result<()> {
        self.end(Signal::Kill).await
    }

    /// Stops it and starts it again.
    ///
    /// # Errors
    /// When either takes more than a minute.
    pub async fn restart(&self, mode: StopMode) -> Result<()> {
        self.stop(mode).await?;
        self.start_again().await
    }

    /// The number of the postmaster; none while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.slot().as_ref().map(Process::pid)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The superuser's name.
    pub fn user(&self) -> &'static str {
        "postgres"
    }

    /// The superuser's password.
    pub fn password(&self) -> &'static str {
        &data::SUPERUSER_PASSWORD
    }

    /// A connection string for the superuser. With TLS the mode is `require`.
    pub fn url(&self, database: &str) -> String {
        self.url_at(self.port, database)
    }

    /// The same through a proxy or pooler at another port.
    pub fn url_at(&self, port: u16, database: &str) -> String {
        self.url_as(self.user(), self.password(), port, database)
    }

    /// A connection string for another login.
    pub fn url_as(&self, user: &str, password: &str, port: u16, database: &str) -> String {
        let mode = if self.tls { "require" } else { "disable" };
        let address = address::servers();
        format!("postgres://{user}:{password}@{address}:{port}/{database}?sslmode={mode}")
    }

    /// A session of the superuser.
    ///
    /// # Errors
    /// When there is none within ten seconds.
    pub async fn connect(&self, database: &str) -> Result<PgConnection> {
        connect(&self.url(database)).await
    }

    /// Changes a setting of the running server.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn alter_system(&self, name: &str, value: &str) -> Result<()> {
        let mut session = self.connect("postgres").await?;
        session
            .execute(sqlx::AssertSqlSafe(format!(
                "alter system set {name} = '{value}'"
            )))
            .await?;
        session.execute("select pg_reload_conf()").await?;
        session.close().await.context("close the session")
    }

    /// Runs a client program of the server's own version, for example `pg_dump`, logged in as the superuser.
    ///
    /// # Errors
    /// When it cannot be started; its own failure is in the output.
    pub async fn tool(&self, program: &str, arguments: &[&str]) -> Result<Output> {
        let flavour = Flavour::current();
        let mut command = flavour.command(User::Postgres, &flavour.postgres_program(program))?;
        command
            .args(arguments)
            .env("PGHOST", address::servers().to_string())
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", self.user())
            .env("PGPASSWORD", self.password());
        let output = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(Duration::from_secs(120), output).await;
        output
            .with_context(|| format!("{program} takes more than two minutes"))?
            .with_context(|| format!("run {program}"))
    }

    /// A folder that the server's tools may write to.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// All the server has logged.
    pub fn log(&self) -> String {
        fs::read(self.log_file())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        tail(&self.log(), 20)
    }
}

/// A session by connection string.
///
/// # Errors
/// When there is none within ten seconds.
pub async fn connect(url: &str) -> Result<PgConnection> {
    let session = tokio::time::timeout(Duration::from_secs(10), PgConnection::connect(url)).await;
    session
        .context("PostgreSQL does not answer within ten seconds")?
        .context("connect to PostgreSQL")
}
