//! A database per test on a server that many tests share.

use anyhow::{Context as _, Result};
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use crate::background::best_effort;
use crate::postgres::{self, PostgresServer};
use crate::run;

/// An empty database, dropped at the end of its test.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: String,
    maintenance_url: String,
}

impl Database {
    /// Creates it; the name begins with `prefix`.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn create(server: &PostgresServer, prefix: &str) -> Result<Self> {
        Self::named(server, run::unique_name(prefix)).await
    }

    /// The same with this very name, for a server that nobody shares.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn named(server: &PostgresServer, name: String) -> Result<Self> {
        let mut session = server.connect("postgres").await?;
        session
            .execute(AssertSqlSafe(format!("create database {name}")))
            .await
            .with_context(|| format!("create database {name}"))?;
        session.close().await?;
        Ok(Self {
            url: server.url(&name),
            maintenance_url: server.url("postgres"),
            name,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its connection string, for the superuser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A session.
    ///
    /// # Errors
    /// When there is none within ten seconds.
    pub async fn connect(&self) -> Result<PgConnection> {
        postgres::connect(&self.url).await
    }

    /// A pool of at most `size` sessions.
    ///
    /// # Errors
    /// When the first session cannot be had.
    pub async fn pool(&self, size: u32) -> Result<PgPool> {
        PgPoolOptions::new()
            .max_connections(size)
            .connect(&self.url)
            .await
            .context("connect to PostgreSQL")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (name, url) = (self.name.clone(), self.maintenance_url.clone());
        best_effort(async move {
            let mut session = postgres::connect(&url).await?;
            session
                .execute(AssertSqlSafe(format!("drop database {name} with (force)")))
                .await?;
            Ok(())
        });
    }
}
