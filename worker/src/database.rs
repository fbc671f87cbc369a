//! Sessions with PostgreSQL.
//!
//! Invariants: every connect and every call has a deadline; a session whose call did not end well is
//! thrown away, never reused; behind a transaction pooler nothing outlives a transaction.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use postroom_crds::inbox_outbox::database::PoolerMode;
use postroom_crds::worker_config::{DatabaseConfig, TlsLevel};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgSslMode};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Postgres, Row};
use tokio::time::timeout;

use crate::metrics::METRICS;
use crate::reason::{self, Reason};
use crate::secret::{self, Server};

/// Deadline of a connect.
const CONNECT: Duration = Duration::from_secs(10);

/// How to reach a database.
#[derive(Debug, Clone)]
pub struct Database {
    config: DatabaseConfig,
    schema: String,
}

impl Database {
    /// The database of a configuration; `schema` holds the tables.
    pub fn new(config: &DatabaseConfig, schema: &str) -> Self {
        Self {
            config: config.clone(),
            schema: schema.to_owned(),
        }
    }

    /// Name of the schema.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// A session that connects when it is first used. `name` shows in `pg_stat_activity`.
    pub fn session(&self, name: &'static str) -> Session {
        Session {
            database: self.clone(),
            name,
            connection: None,
        }
    }

    /// Reads the secret anew, so that a changed one is taken up by the next connect.
    async fn options(&self, name: &str) -> Result<PgConnectOptions, Reason> {
        let url = secret::read(&self.config.url, Server::Database)?;
        let wrong = || {
            Reason::new(
                "WrongUrl",
                "the connection URL of the database cannot be read",
                "Write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE, with reserved characters percent-encoded.",
            )
        };
        // The driver takes any scheme.
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(wrong());
        }
        let options = PgConnectOptions::from_str(&url).map_err(|_| wrong())?;
        let mode = match self.config.tls.mode {
            TlsLevel::FromUrl if url.contains("sslmode=") => options.get_ssl_mode(),
            TlsLevel::FromUrl | TlsLevel::Require => PgSslMode::Require,
            TlsLevel::Disable => PgSslMode::Disable,
            TlsLevel::VerifyCa => PgSslMode::VerifyCa,
            TlsLevel::VerifyFull => PgSslMode::VerifyFull,
        };
        let mut options = options
            .ssl_mode(mode)
            .application_name(&format!("postroom-worker {name}"))
            .log_statements(tracing::log::LevelFilter::Off)
            .disable_statement_logging();
        if let Some(path) = secret::path(self.config.tls.ca.as_ref())? {
            options = options.ssl_root_cert(Path::new(&path));
        }
        if let Some(client) = &self.config.tls.client_certificate {
            if let Some(path) = secret::path(Some(&client.certificate))? {
                options = options.ssl_client_cert(Path::new(&path));
            }
            if let Some(path) = secret::path(Some(&client.key))? {
                options = options.ssl_client_key(Path::new(&path));
            }
        }
        Ok(options)
    }

    /// Connects, and refuses a server that cannot write.
    pub async fn connect(&self, name: &str) -> Result<PgConnection, Reason> {
        let options = self.options(name).await?;
        let connect = async {
            let mut connection = options.connect().await?;
            let row = connection.fetch_one("select pg_is_in_recovery()").await?;
            Ok::<_, sqlx::Error>((connection, row.try_get::<bool, _>(0)?))
        };
        match timeout(CONNECT, connect).await {
            Err(_) => Err(Reason::timeout("the database", CONNECT)),
            Ok(Err(error)) => Err(reason::of_database(&error)),
            Ok(Ok((_, true))) => Err(Reason::new(
                "ReadOnly",
                "the database server is a standby and cannot write",
                "Point the connection URL at the primary server.",
            )),
            Ok(Ok((connection, false))) => Ok(connection),
        }
    }
}

/// Counts a connection for as long as it is there, however it ends.
#[derive(Debug)]
struct Counted;

impl Counted {
    fn new() -> Self {
        METRICS.connection(1);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        METRICS.connection(-1);
    }
}

/// One connection, made anew whenever the last one did not end a call well.
#[derive(Debug)]
pub struct Session {
    database: Database,
    name: &'static str,
    connection: Option<(PgConnection, Counted)>,
}

/// A connection within one call.
#[derive(Debug)]
pub struct Link<'a> {
    /// The connection; use [`Link::query`] to make statements for it.
    pub connection: &'a mut PgConnection,
    schema: &'a str,
    persistent: bool,
}

impl<'a> Link<'a> {
    /// A link over a connection that the caller keeps, such as the one that holds a lock.
    pub fn new(connection: &'a mut PgConnection, schema: &'a str) -> Self {
        Self {
            connection,
            schema,
            persistent: false,
        }
    }

    /// Whether a transaction pooler stands in between: then the call is one transaction, and nothing outlives it.
    pub fn is_pooled(&self) -> bool {
        !self.persistent
    }

    /// The text of a statement, with `@schema@` replaced by the schema's quoted name.
    pub fn sql(&self, text: &str) -> String {
        text.replace("@schema@", &format!("\"{}\"", self.schema))
    }

    /// A statement; named on the server only where the session is ours.
    pub fn query<'q>(&self, text: &str) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(AssertSqlSafe(self.sql(text))).persistent(self.persistent)
    }
}

impl Session {
    /// Runs `work` within `deadline`. In pooler mode it is one transaction. On an error of the server the session is kept
    /// where that is safe; on anything else it is thrown away.
    pub async fn call<T>(
        &mut self,
        deadline: Duration,
        work: impl AsyncFnOnce(&mut Link<'_>) -> Result<T, sqlx::Error>,
    ) -> Result<T, Reason> {
        // Taken out first: if this future is dropped half-way, so is the connection.
        let (mut connection, counted) = match self.connection.take() {
            Some(connection) => connection,
            None => (self.database.connect(self.name).await?, Counted::new()),
        };
        let pooled = self.database.config.pooler_mode == PoolerMode::Transaction;
        let mut link = Link {
            connection: &mut connection,
            schema: &self.database.schema,
            persistent: !pooled,
        };
        let call = async {
            if pooled {
                link.connection.execute("begin").await?;
            }
            let answer = work(&mut link).await?;
            if pooled {
                link.connection.execute("commit").await?;
            }
            Ok(answer)
        };
        match timeout(deadline, call).await {
            Err(_) => Err(Reason::timeout("the database", deadline)),
            Ok(Ok(answer)) => {
                self.connection = Some((connection, counted));
                Ok(answer)
            }
            Ok(Err(error)) => {
                let reason = reason::of_database(&error);
                let usable = matches!(error, sqlx::Error::Database(_))
                    && !pooled
                    && reason.code != "ReadOnly";
                if usable {
                    self.connection = Some((connection, counted));
                }
                Err(reason)
            }
        }
    }

    /// Ends the session in an orderly way.
    pub async fn close(&mut self) {
        if let Some((connection, _counted)) = self.connection.take() {
            // Only a courtesy to the server: it notices a vanished client by itself.
            drop(timeout(Duration::from_secs(1), connection.close()).await);
        }
    }
}
