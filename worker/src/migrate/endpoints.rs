//! Tells the database about the endpoints, so that applications can write before any worker runs.
//!
//! Invariant: the settings of an older generation never replace those of a newer one; the functions in the database see to it.

use postroom_crds::worker_config::{InboxConfig, OutboxConfig, WorkerConfig};
use serde::Serialize;
use sqlx::types::Json;
use sqlx::{Executor, Row};

use super::script::{identifier, literal};
use crate::database::Link;

/// $1 settings, $2 paused, $3 resource, $4 generation. The words of the resource are those of the table.
const OUTBOX_TEXT: &str = "select @schema@.register_endpoint(s ->> 'name', 'Outbox', s #>> '{ordering,mode}', s #>> '{ordering,onFailure}', \
    s #>> '{ordering,onScheduled}', (s #>> '{delivery,maxMessageBytes}')::int, $2, s, $3, $4) from (select $1::jsonb) t(s)";
/// The same for an inbox.
const INBOX_TEXT: &str = "select @schema@.register_endpoint(s ->> 'name', 'Inbox', s #>> '{ordering,mode}', s #>> '{ordering,onFailure}', \
    s #>> '{ordering,onScheduled}', (s #>> '{consumer,maxMessageBytes}')::int, $2, s, $3, $4, (select min(k) from jsonb_object_keys(s -> 'handler') k), \
    s #>> '{handler,sqlFunction,name}') from (select $1::jsonb) t(s)";
/// $1 to $3 are seconds.
const RETENTION: &str = "select @schema@.register_retention(trim_scale(round($1::bigint / 86400.0, 9)), trim_scale(round($2::bigint / 86400.0, 9)), \
    trim_scale(round($3::bigint / 86400.0, 9)))";

/// Registers everything in `config`; answers the endpoints that a newer generation has registered already.
pub(super) async fn register(
    link: &mut Link<'_>,
    config: &WorkerConfig,
) -> Result<Vec<String>, sqlx::Error> {
    let mut left = Vec::new();
    for endpoint in in_order(config) {
        let query = link
            .query(endpoint.text())
            .bind(Json(endpoint))
            .bind(config.paused || endpoint.is_paused())
            .bind(resource(config))
            .bind(config.generation);
        if !link
            .connection
            .fetch_one(query)
            .await?
            .try_get::<bool, _>(0)?
        {
            left.push(endpoint.name().to_owned());
        }
    }
    let query = link
        .query(RETENTION)
        .bind(signed(config.retention.deduplication_seconds))
        .bind(signed(config.retention.dead_seconds))
        .bind(signed(config.retention.requests_seconds));
    link.connection.execute(query).await?;
    Ok(left)
}

/// The same as statements with their values in them.
pub(super) fn as_text(config: &WorkerConfig) -> String {
    let schema = identifier(&config.schema);
    let retention = RETENTION
        .replace("@schema@", &schema)
        .replace("$1", &config.retention.deduplication_seconds.to_string())
        .replace("$2", &config.retention.dead_seconds.to_string())
        .replace("$3", &config.retention.requests_seconds.to_string());
    let endpoints = in_order(config).into_iter().map(|endpoint| {
        // The settings last: they may hold anything.
        endpoint
            .text()
            .replace("@schema@", &schema)
            .replace("$2", &(config.paused || endpoint.is_paused()).to_string())
            .replace("$3", &literal(&resource(config)))
            .replace("$4", &config.generation.to_string())
            .replace("$1", &literal(&serde_json::json!(endpoint).to_string()))
    });
    endpoints
        .chain([retention])
        .map(|statement| format!("{statement};\n"))
        .collect()
}

/// An outbox or an inbox.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
enum Endpoint<'a> {
    Outbox(&'a OutboxConfig),
    Inbox(&'a InboxConfig),
}

impl Endpoint<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Outbox(outbox) => &outbox.name,
            Self::Inbox(inbox) => &inbox.name,
        }
    }

    fn is_paused(&self) -> bool {
        match self {
            Self::Outbox(outbox) => outbox.paused,
            Self::Inbox(inbox) => inbox.paused,
        }
    }

    fn text(&self) -> &'static str {
        match self {
            Self::Outbox(_) => OUTBOX_TEXT,
            Self::Inbox(_) => INBOX_TEXT,
        }
    }
}

/// The same order everywhere, so that workers that start together do not wait for each other in a circle.
fn in_order(config: &WorkerConfig) -> Vec<Endpoint<'_>> {
    let outboxes = config.outboxes.iter().map(Endpoint::Outbox);
    let mut all: Vec<_> = outboxes
        .chain(config.inboxes.iter().map(Endpoint::Inbox))
        .collect();
    all.sort_unstable_by(|a, b| a.name().cmp(b.name()));
    all
}

fn resource(config: &WorkerConfig) -> String {
    format!("{}/{}", config.namespace, config.name)
}

fn signed(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::script::Target;
    use super::super::tests::config;
    use super::as_text;

    #[test]
    fn printed_statements_carry_the_settings_and_a_quote_in_them_stays_a_quote() {
        let mut config = config();
        config.generation = 7;
        config.outboxes[0]
            .headers
            .insert("x-note".to_owned(), "it's $2 @schema@".to_owned());
        let text = as_text(&config);
        assert!(text.contains("it''s $2 @schema@"), "{text}");
        assert!(text.contains(", false, s, 'default/orders', 7)"), "{text}");
        assert!(
            text.contains("round(2592000::bigint / 86400.0, 9)"),
            "{text}"
        );
        let target = Target {
            schema: "postroom",
            owner: "app",
            names: None,
            timeouts: &config.migration.clone(),
        };
        assert!(
            target
                .registration(&config)
                .sql
                .contains("it''s $2 @schema@"),
            "a value is not a template"
        );
        config.paused = true;
        assert!(as_text(&config).contains(", true, s, 'default/orders', 7)"));
    }
}
