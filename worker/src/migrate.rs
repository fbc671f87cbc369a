//! `postroom-worker migrate`: brings the schema to the version of this program, and registers the endpoints.
//!
//! Reading order: [`migrate`] below is the whole procedure; `lock` keeps two migrations apart, `found` is what
//! the database has, `roles` decides who owns the objects, `plan` what is to be done, `script` makes the SQL of each step from
//! `files`, `execution` takes the steps, `endpoints` registers, `report` tells.
//!
//! Invariants: what cannot end well is refused before anything is changed; each step is one transaction, so a migration that
//! is cut off goes on where it stopped; the printed SQL is the executed SQL.

mod endpoints;
mod execution;
pub mod files;
mod found;
mod lock;
mod plan;
pub mod report;
pub mod roles;
mod script;

use std::io::{Write, stdout};
use std::str::FromStr;
use std::time::{Duration, Instant};

use postroom_crds::inbox_outbox::database::PoolerMode;
use postroom_crds::worker_config::WorkerConfig;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Executor, Row};
use tokio::time::timeout;

use crate::cli::Output;
use crate::database::{Database, Link};
use crate::reason::{self, Reason};
use crate::secret::{self, Server};
use execution::{LOOK, execute, within};
use files::MIGRATIONS;
use plan::{Plan, plan};
use report::{AppliedNow, Outcome, Registered, Report, Voice};
use roles::Mode;

/// The schema version that this program works with.
pub fn newest_version() -> u32 {
    MIGRATIONS
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or_default()
}

/// Migrates the database of `config`, or says what that would do.
pub async fn migrate(
    config: &WorkerConfig,
    dry_run: bool,
    output: Output,
) -> Result<Report, Reason> {
    let mut connection = connect(config).await?;
    let mut link = Link::new(&mut connection, &config.schema);
    let voice = Voice(output);
    let done = if dry_run {
        plan(&mut link, config)
            .await
            .map(|plan| plan.report(config, true))
    } else {
        under_lock(&mut link, config, voice).await
    };
    // Closing gives the lock back; so does the end of the process.
    drop(timeout(Duration::from_secs(1), connection.close()).await);
    let report = done?;
    voice.close(&report);
    Ok(report)
}

async fn under_lock(
    link: &mut Link<'_>,
    config: &WorkerConfig,
    voice: Voice,
) -> Result<Report, Reason> {
    lock::take(link, &config.schema).await?;
    let plan = plan(link, config).await?;
    let mut report = plan.report(config, false);
    prepare(link, config, &plan, voice).await?;
    report.applied = apply(link, config, &plan, voice).await?;
    let target = plan.target(config);
    execute(link, &target.rights()).await?;
    report.endpoints = register_endpoints(link, config, &plan).await?;
    Ok(report)
}

/// Prints the SQL that brings an empty database to this version; connects to nothing.
pub fn print(config: &WorkerConfig) -> Result<(), Reason> {
    let text = script::whole(config, &database_name(config)?);
    stdout().write_all(text.as_bytes()).map_err(|error| {
        Reason::new(
            "OutputFailed",
            format!("the SQL was not printed to its end: {error}"),
            "Do not use what was printed; print it again.",
        )
    })
}

/// Registers the endpoints and retention windows; a worker does so at its start.
pub async fn register(link: &mut Link<'_>, config: &WorkerConfig) -> Result<(), sqlx::Error> {
    for name in endpoints::register(link, config).await? {
        tracing::info!(
            endpoint = name,
            "Endpoint {name} keeps the settings of a newer generation of the resource"
        );
    }
    Ok(())
}

/// Whether a worker of this version can work with the schema.
pub async fn check_version(link: &mut Link<'_>) -> Result<(), Reason> {
    let query = link.query("select max(version) from @schema@.schema_version");
    let row = link.connection.fetch_one(query).await;
    let version: Option<i32> = row
        .and_then(|row| row.try_get(0))
        .map_err(|error| reason::of_database(&error))?;
    judge_version(
        version
            .and_then(|version| u32::try_from(version).ok())
            .unwrap_or_default(),
    )
}

fn judge_version(version: u32) -> Result<(), Reason> {
    let newest = newest_version();
    match version {
        _ if version > newest => Err(ahead(version)),
        _ if version < newest => Err(Reason::new(
            "SchemaNotReady",
            format!("the schema is at version {version}, this worker needs version {newest}"),
            "Run `postroom-worker migrate` of this version with the same resource.",
        )),
        _ => Ok(()),
    }
}

fn ahead(version: u32) -> Reason {
    Reason::new(
        "SchemaAhead",
        format!(
            "PR007: the schema is at version {version}, this worker knows only up to version {}",
            newest_version()
        ),
        "Run a worker of the version that migrated the schema, or a newer one.",
    )
}

/// Connects to the server itself, also where workers go through a pooler.
async fn connect(config: &WorkerConfig) -> Result<PgConnection, Reason> {
    let mut settings = config.database.clone();
    if let Some(url) = settings.migration_url.take() {
        settings.url = url;
        settings.pooler_mode = PoolerMode::Session;
    }
    if settings.pooler_mode == PoolerMode::Transaction {
        tracing::warn!(
            "The workers go through a pooler in transaction mode; a migration needs a URL that leads straight to the server"
        );
        settings.pooler_mode = PoolerMode::Session;
    }
    Database::new(&settings, &config.schema)
        .connect("migration")
        .await
}

/// The database's name, as the URL gives it.
fn database_name(config: &WorkerConfig) -> Result<String, Reason> {
    let source = config.database.migration_url.as_ref();
    let url = secret::read(source.unwrap_or(&config.database.url), Server::Database)?;
    let options = PgConnectOptions::from_str(&url).map_err(|_| {
        Reason::new(
            "WrongUrl",
            "the connection URL of the database cannot be read",
            "Write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE, with reserved characters percent-encoded.",
        )
    })?;
    Ok(options
        .get_database()
        .unwrap_or_else(|| options.get_username())
        .to_owned())
}

/// Makes what the migrations stand on: roles, schema, version table.
async fn prepare(
    link: &mut Link<'_>,
    config: &WorkerConfig,
    plan: &Plan,
    voice: Voice,
) -> Result<(), Reason> {
    let target = plan.target(config);
    let acts = plan
        .found
        .roles
        .iter()
        .any(|role| role.name == plan.names.owner && role.may_act);
    if plan.mode == Mode::Roles && !(acts && plan.missing_roles().is_empty()) {
        execute(link, &target.roles(&plan.names)).await?;
        for role in plan.missing_roles() {
            voice.say(&format!("Created role {role}"));
        }
    }
    match &plan.found.schema {
        None => {
            execute(link, &target.create_schema()).await?;
            voice.say(&format!("Created schema {}", config.schema));
        }
        Some(schema) if schema.owner != plan.owner() => {
            execute(link, &target.adopt_schema()).await?;
            voice.say(&format!(
                "Handed schema {} from role {} to role {}",
                config.schema,
                schema.owner,
                plan.owner()
            ));
        }
        Some(_) => {}
    }
    if plan
        .found
        .schema
        .as_ref()
        .is_none_or(|schema| !schema.installed)
    {
        execute(link, &target.version_table()).await?;
    }
    Ok(())
}

/// Applies what is pending, oldest first.
async fn apply(
    link: &mut Link<'_>,
    config: &WorkerConfig,
    plan: &Plan,
    voice: Voice,
) -> Result<Vec<AppliedNow>, Reason> {
    let target = plan.target(config);
    let mut applied = Vec::new();
    for migration in &plan.pending {
        let began = Instant::now();
        execute(link, &target.migration(migration)).await?;
        let milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        voice.say(&format!(
            "Applied {:04} {} ({milliseconds} ms)",
            migration.version, migration.name
        ));
        applied.push(AppliedNow {
            version: migration.version,
            name: migration.name,
            milliseconds: Some(milliseconds),
        });
    }
    Ok(applied)
}

/// Registers the endpoints as the owner, and tells what changed.
async fn register_endpoints(
    link: &mut Link<'_>,
    config: &WorkerConfig,
    plan: &Plan,
) -> Result<Vec<Registered>, Reason> {
    let owner = script::identifier(plan.owner());
    let registration = async {
        link.connection
            .execute(AssertSqlSafe(format!(
                "begin; set local role {owner}; set local lock_timeout = '10s'"
            )))
            .await?;
        let left = endpoints::register(link, config).await?;
        let now = found::endpoints(link).await?;
        link.connection.execute("commit").await?;
        Ok((left, now))
    };
    let (left, now) = within(LOOK, registration).await?;
    let time = |list: &[(String, String)], name: &str| {
        list.iter()
            .find(|(known, _)| known == name)
            .map(|(_, time)| time.clone())
    };
    let outcome = |name: &String| match time(&plan.found.endpoints, name) {
        _ if left.contains(name) => Outcome::Newer,
        None => Outcome::Added,
        before if before == time(&now, name) => Outcome::Unchanged,
        Some(_) => Outcome::Changed,
    };
    Ok(config
        .outboxes
        .iter()
        .map(|o| Registered {
            name: o.name.clone(),
            outcome: outcome(&o.name),
        })
        .collect())
}

#[cfg(test)]
mod tests;
