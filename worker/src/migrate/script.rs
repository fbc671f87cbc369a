//! The SQL of a migration, as texts. What is printed for psql is what is executed.
//!
//! Invariants: each step is one whole transaction with its own time-outs; a migration and its row in `schema_version`
//! are in the same one; every placeholder is replaced by a quoted identifier.

use std::time::Duration;

use postroom_crds::worker_config::{MigrationConfig, WorkerConfig};

use super::endpoints;
use super::files::{MIGRATIONS, Migration, RIGHTS};
use super::roles::RoleNames;

/// As many of the longest statements fit into the deadline of a step.
const STATEMENTS: u64 = 3;

/// What `rights.sql` takes from everybody, where there are no roles to give anything to.
const NO_RIGHTS: &str = "revoke all on schema @schema@ from public;
revoke all on all tables in schema @schema@ from public;
revoke all on all functions in schema @schema@ from public;
revoke all on all sequences in schema @schema@ from public;
revoke all on type receipt, message_slot, fetched, inbox_message from public;
";

/// One transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// What it does, for people.
    pub(super) title: String,
    /// Its text, from `begin` to `commit`.
    pub(super) sql: String,
    /// When to give up on the server; its own time-outs come first.
    pub(super) deadline: Duration,
}

/// Where the steps act.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    /// Name of the schema.
    pub(super) schema: &'a str,
    /// Owner of the objects.
    pub(super) owner: &'a str,
    /// The roles; none in one-role mode.
    pub(super) names: Option<&'a RoleNames>,
    /// How long a step may wait and work.
    pub(super) timeouts: &'a MigrationConfig,
}

/// A name as SQL takes it, whatever it contains.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as SQL takes it.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl Target<'_> {
    /// Creates what is missing of the roles, and lets the login act as the owner.
    pub(super) fn roles(&self, names: &RoleNames) -> Step {
        let list = names.all().map(literal).join(", ");
        let owner = literal(&names.owner);
        // Since PostgreSQL 16 a member may lack the right to act as the role.
        let body = format!(
            "do $postroom$
declare
    wanted text;
begin
    foreach wanted in array array[{list}] loop
        if not exists (select from pg_catalog.pg_roles where rolname = wanted) then
            execute pg_catalog.format('create role %I nologin', wanted);
        end if;
    end loop;
    if not pg_catalog.pg_has_role(current_user, {owner}, case when pg_catalog.current_setting('server_version_num')::int >= 160000 then 'SET' else 'MEMBER' end) then
        execute pg_catalog.format('grant %I to %I', {owner}, current_user);
    end if;
end $postroom$;
"
        );
        self.timed("roles", &body)
    }

    /// Creates the schema.
    pub(super) fn create_schema(&self) -> Step {
        let (schema, owner) = (identifier(self.schema), identifier(self.owner));
        self.timed(
            "schema",
            &format!("create schema if not exists {schema} authorization {owner};\n"),
        )
    }

    /// Hands a prepared empty schema to the owner.
    pub(super) fn adopt_schema(&self) -> Step {
        let (schema, owner) = (identifier(self.schema), identifier(self.owner));
        self.timed(
            "schema",
            &format!("alter schema {schema} owner to {owner};\n"),
        )
    }

    /// The table of applied migrations.
    pub(super) fn version_table(&self) -> Step {
        self.step(
            "version table",
            "create table if not exists schema_version (
    version        integer primary key,
    name           text not null,
    applied_at     timestamptz not null default clock_timestamp(),
    checksum       text not null,
    worker_version text not null
);
comment on table schema_version is 'The migrations that are applied, each with the version of the worker that applied it.';
",
        )
    }

    /// One migration with its row.
    pub(super) fn migration(&self, migration: &Migration) -> Step {
        let row = format!(
            "insert into schema_version (version, name, checksum, worker_version) values ({}, {}, {}, {});\n",
            migration.version,
            literal(migration.name),
            literal(&migration.checksum()),
            literal(env!("CARGO_PKG_VERSION")),
        );
        self.step(
            &format!("migration {:04} {}", migration.version, migration.name),
            &format!("{}\n{row}", migration.text),
        )
    }

    /// Who may do what.
    pub(super) fn rights(&self) -> Step {
        self.step(
            "rights",
            if self.names.is_some() {
                RIGHTS
            } else {
                NO_RIGHTS
            },
        )
    }

    /// The endpoints and windows of `config`.
    pub(super) fn registration(&self, config: &WorkerConfig) -> Step {
        self.as_owner("endpoints", &endpoints::as_text(config))
    }

    fn step(&self, title: &str, body: &str) -> Step {
        self.as_owner(title, &self.fill(body))
    }

    /// A step that the owner takes, with the schema in front of the search path.
    fn as_owner(&self, title: &str, body: &str) -> Step {
        let (owner, schema) = (identifier(self.owner), identifier(self.schema));
        self.timed(
            title,
            &format!("set local role {owner};\nset local search_path = {schema}, pg_temp;\n{body}"),
        )
    }

    fn timed(&self, title: &str, body: &str) -> Step {
        let MigrationConfig {
            lock_timeout_seconds: lock,
            statement_timeout_seconds: statement,
        } = self.timeouts;
        let sql = format!(
            "begin;\nset local client_min_messages = warning;\nset local lock_timeout = '{lock}s';\n\
             set local statement_timeout = '{statement}s';\n{body}commit;\n"
        );
        Step {
            title: title.to_owned(),
            sql,
            deadline: Duration::from_secs(u64::from(*statement) * STATEMENTS + u64::from(*lock)),
        }
    }

    fn fill(&self, text: &str) -> String {
        let text = TWINS
            .iter()
            .fold(text.to_owned(), |text, twins| twins.write_out(&text))
            .replace("@schema@", &identifier(self.schema))
            .replace("@owner@", &identifier(self.owner));
        match self.names {
            None => text,
            Some(names) => text
                .replace("@worker@", &identifier(&names.worker))
                .replace("@app@", &identifier(&names.app))
                .replace("@reader@", &identifier(&names.reader)),
        }
    }
}

/// Two parts of the schema that are the same but for some words.
struct Twins {
    /// The line before a block that is written once for both.
    mark: &'static str,
    words: [&'static [(&'static str, &'static str)]; 2],
}

const TWINS: [Twins; 2] = [
    Twins {
        mark: "--@ each box\n",
        words: [
            &[("@box@", "outbox"), ("@done@", "published")],
            &[("@box@", "inbox"), ("@done@", "handled")],
        ],
    },
    Twins {
        mark: "--@ each ring\n",
        words: [
            &[
                ("@ring@", "deduplication"),
                ("@setting@", "dedup_retention_days"),
                (
                    "@tables@",
                    "message_deduplication_%1$s, idempotency_key_%1$s",
                ),
            ],
            &[
                ("@ring@", "request"),
                ("@setting@", "request_retention_days"),
                (
                    "@tables@",
                    "request_%1$s, request_message_%1$s, request_delivery_%1$s",
                ),
            ],
        ],
    },
];

impl Twins {
    /// Repeats each block, up to the line `--@ end`, for both, so that they cannot drift apart.
    fn write_out(&self, text: &str) -> String {
        let mut whole = String::with_capacity(2 * text.len());
        let mut rest = text;
        while let Some((before, block)) = rest.split_once(self.mark) {
            let (block, after) = block.split_once("--@ end\n").unwrap_or((block, ""));
            whole.push_str(before);
            for words in self.words {
                let twin = words.iter().fold(block.to_owned(), |twin, (word, value)| {
                    twin.replace(word, value)
                });
                whole.push_str(&twin);
            }
            rest = after;
        }
        whole + rest
    }
}

/// Everything for an empty database, in the form that psql takes.
pub(super) fn whole(config: &WorkerConfig, database: &str) -> String {
    let names = RoleNames::new(database, &config.schema);
    let target = Target {
        schema: &config.schema,
        owner: &names.owner,
        names: Some(&names),
        timeouts: &config.migration,
    };
    let mut steps = vec![
        target.roles(&names),
        target.create_schema(),
        target.version_table(),
    ];
    steps.extend(
        MIGRATIONS
            .iter()
            .map(|migration| target.migration(migration)),
    );
    steps.extend([target.rights(), target.registration(config)]);
    let head = format!(
        "-- Schema {} for an empty database {}, at version {}.\n\\set ON_ERROR_STOP on\n",
        config.schema,
        database.escape_debug(),
        super::newest_version()
    );
    let parts = steps
        .iter()
        .map(|step| format!("\n-- Step: {}\n{}", step.title, step.sql));
    [head].into_iter().chain(parts).collect()
}

#[cfg(test)]
mod tests;
