//! The command line: what can be asked for, and which variable stands in for which flag.
//!
//! Invariant: every flag has a variable `POSTROOM_...`; what is typed wins over the variable.

pub mod failure;
pub mod logging;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Moves messages from a transactional outbox in PostgreSQL to RabbitMQ.
#[derive(Debug, Parser)]
#[command(
    name = "postroom-worker",
    version,
    propagate_version = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Exit codes: 0 done, 1 found something wrong, 2 wrong command line or file, \
    3 a server cannot be reached or is not ready, 4 trying again will not help."
)]
pub struct Cli {
    /// What is said on standard error.
    #[command(flatten)]
    pub log: Log,
    /// Also write why the command failed to this file, as JSON: a pod's termination message, for example
    #[arg(
        long,
        env = "POSTROOM_FAILURE_FILE",
        value_name = "FILE",
        global = true
    )]
    pub failure_file: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What is said on standard error, and how.
#[derive(Debug, Clone, Args)]
pub struct Log {
    /// What to log: a level, or levels by module, such as `info,postroom_worker::outbox=debug`
    #[arg(
        long = "log",
        env = "POSTROOM_LOG",
        default_value = "info",
        value_name = "FILTER",
        global = true
    )]
    #[arg(value_parser = logging::parse_filter)]
    pub filter: String,
    /// Form of the log on standard error
    #[arg(
        long = "log-format",
        env = "POSTROOM_LOG_FORMAT",
        default_value = "text",
        value_name = "FORM",
        global = true
    )]
    pub format: LogFormat,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish messages until SIGTERM or SIGINT, then finish what is in flight
    #[command(after_help = "Example:\n  \
        DATABASE_URL=postgres://app@db/shop AMQP_URL=amqp://guest@mq postroom-worker run --resource orders.yaml")]
    Run(Run),
    /// Create or update the schema in the database, and register the endpoints
    #[command(after_help = "Examples:\n  \
        DATABASE_URL=postgres://admin@db/shop postroom-worker migrate --resource orders.yaml\n  \
        DATABASE_URL=postgres://admin@db/shop postroom-worker migrate --resource orders.yaml --print | psql shop\n\n\
        The connection URL must lead straight to the primary server, or to a pooler in session mode: the lock that \
        keeps two migrations apart belongs to the session. A login that may create roles gives the schema roles of \
        its own; any other that may create schemas owns everything itself (one-role mode).")]
    Migrate(Migrate),
    /// Show how many messages wait, by endpoint
    #[command(after_help = "Example:\n  \
        DATABASE_URL=postgres://app@db/shop postroom-worker stats --resource orders.yaml --watch")]
    Stats(Stats),
    /// Say where a message is, why, and what happens next
    #[command(after_help = "Example:\n  \
        DATABASE_URL=postgres://app@db/shop postroom-worker explain --resource orders.yaml 0197f3a2-5c1e-7d0a-9b1f-3f6f0c2a7e55")]
    Explain(Explain),
}

/// Where the configuration is; exactly one of the two.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub struct Origin {
    /// The JSON document that an operator rendered
    #[arg(long, env = "POSTROOM_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// An `InboxOutbox` in YAML; secrets come from `DATABASE_URL` and `AMQP_URL` (or `AMQP_URL_<TRANSPORT>`)
    #[arg(long, env = "POSTROOM_RESOURCE", value_name = "FILE")]
    pub resource: Option<PathBuf>,
}

/// Form of what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[value(alias = "text")]
    Table,
    /// For programs.
    Json,
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Where the configuration is.
    #[command(flatten)]
    pub origin: Origin,
    /// Address for probes, statistics and metrics
    #[arg(
        long,
        env = "POSTROOM_HTTP_ADDRESS",
        default_value = "127.0.0.1:9464",
        value_name = "HOST:PORT"
    )]
    pub http_address: SocketAddr,
    /// Whether to look for messages that were passed over; off only for tests
    #[arg(long, env = "POSTROOM_SWEEP", default_value = "on", hide = true)]
    pub sweep: Switch,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It is done.
    On,
    /// It is left out.
    Off,
}

/// Flags of `migrate`.
#[derive(Debug, Args)]
pub struct Migrate {
    /// Where the configuration is.
    #[command(flatten)]
    pub origin: Origin,
    /// Print the SQL for an empty database, for psql, and connect to nothing
    #[arg(long, env = "POSTROOM_PRINT", value_parser = BoolishValueParser::new(), conflicts_with = "dry_run")]
    pub print: bool,
    /// Say what would be done, and change nothing
    #[arg(long, env = "POSTROOM_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Form of the answer
    #[arg(
        long,
        env = "POSTROOM_OUTPUT",
        default_value = "table",
        value_name = "FORM"
    )]
    pub output: Output,
}

/// Flags of `stats`.
#[derive(Debug, Args)]
pub struct Stats {
    /// Where the configuration is.
    #[command(flatten)]
    pub origin: Origin,
    /// Form of the answer
    #[arg(
        long,
        env = "POSTROOM_OUTPUT",
        default_value = "table",
        value_name = "FORM"
    )]
    pub output: Output,
    /// Short for `--output json`
    #[arg(long, env = "POSTROOM_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Measure again every two seconds, until Ctrl-C
    #[arg(long, env = "POSTROOM_WATCH", value_parser = BoolishValueParser::new())]
    pub watch: bool,
}

/// Flags of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Where the configuration is.
    #[command(flatten)]
    pub origin: Origin,
    /// Id of the message, as the application gave it or got it
    #[arg(env = "POSTROOM_MESSAGE_ID", value_name = "MESSAGE_ID")]
    pub message_id: String,
    /// Only messages of this tenant
    #[arg(long, env = "POSTROOM_TENANT")]
    pub tenant: Option<String>,
    /// Form of the answer
    #[arg(
        long,
        env = "POSTROOM_OUTPUT",
        default_value = "table",
        value_name = "FORM"
    )]
    pub output: Output,
}

impl Command {
    /// The form in which this command answers, and fails.
    pub fn output(&self) -> Output {
        match self {
            Self::Run(_) => Output::Table,
            Self::Migrate(flags) => flags.output,
            Self::Stats(flags) if flags.json => Output::Json,
            Self::Stats(flags) => flags.output,
            Self::Explain(flags) => flags.output,
        }
    }
}

#[cfg(test)]
mod tests;
