//! PgBouncer between the worker and PostgreSQL, in the mode that gives a session only for the length of a transaction.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::eventually::eventually;
use crate::flavour::{Flavour, User};
use crate::postgres::{self, PostgresServer};
use crate::process::Process;
use crate::{ports, run};

/// How to start a pooler.
#[derive(Debug, Clone)]
pub struct PoolerOptions {
    /// Sessions with the server per database and user. Few sessions and many clients make them change hands often.
    pub sessions: u16,
    /// Logins besides the superuser: name and password.
    pub logins: Vec<(String, String)>,
    /// Further lines for the section `[pgbouncer]`.
    pub settings: Vec<(String, String)>,
}

impl Default for PoolerOptions {
    fn default() -> Self {
        Self {
            sessions: 10,
            logins: Vec::new(),
            settings: Vec::new(),
        }
    }
}

/// A running PgBouncer in transaction mode.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    process: Process,
}

impl Pooler {
    /// Starts one in front of all databases of `server`.
    ///
    /// # Errors
    /// When no session can be had through it within 20 seconds.
    pub async fn start(server: &PostgresServer, options: &PoolerOptions) -> Result<Self> {
        let folder = run::new_folder("pooler")?;
        let port = ports::free()?;
        let logins = folder.join("logins.txt");
        let mut lines = format!("\"{}\" \"{}\"\n", server.user(), server.password());
        for (user, password) in &options.logins {
            writeln!(lines, "\"{user}\" \"{password}\"")?;
        }
        fs::write(&logins, lines)?;
        let file = folder.join("pgbouncer.ini");
        let mut settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = scram-sha-256\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {}\nmax_client_conn = 500\n\
             ignore_startup_parameters = extra_float_digits\nserver_login_retry = 1\n",
            server.port(),
            logins.display(),
            options.sessions,
        );
        for (name, value) in &options.settings {
            writeln!(settings, "{name} = {value}")?;
        }
        fs::write(&file, settings)?;
        let flavour = Flavour::current();
        for path in [&folder, &logins, &file] {
            flavour.give(User::Postgres, path)?;
        }
        let mut command = flavour.command(User::Postgres, "/usr/sbin/pgbouncer")?;
        let process = Process::spawn(
            "pgbouncer",
            command.arg(&file),
            &folder.join("pgbouncer.log"),
        )?;
        let pooler = Self { port, process };
        pooler.wait(server).await?;
        Ok(pooler)
    }

    async fn wait(&self, server: &PostgresServer) -> Result<()> {
        let url = server.url_at(self.port, "postgres");
        let session = eventually(
            "a session through PgBouncer",
            Duration::from_secs(20),
            || postgres::connect(&url),
        )
        .await;
        match session {
            Ok(_) => Ok(()),
            Err(error) => bail!("{error:#}; its log ends:\n{}", self.process.log_tail(20)),
        }
    }

    /// Its port on 127.0.0.1; see [`PostgresServer::url_at`].
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }
}
