//! What a running worker shows of itself, and several endpoints side by side.

use std::time::Duration;

use anyhow::{Result, ensure};
use postroom_tests::broker::RabbitServer;
use postroom_tests::postgres::{PostgresOptions, PostgresServer};
use postroom_tests::proxy::TcpProxy;
use postroom_tests::resource::Outbox;
use postroom_tests::setup::{EXCHANGE, OUTBOX, Postroom, QUEUE};
use postroom_tests::vhost::{QueueArguments, Vhost};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _};

use crate::traffic::{
    PATIENCE, RECOVERY, Row, condition, row, rows, unsettled, wait_condition, wait_settled,
    wait_well, write, write_to,
};

/// Metrics with the labels of an endpoint, and whether they have one more.
const OF_ENDPOINTS: [(&str, &str); 10] = [
    ("backlog_messages", "state"),
    ("oldest_pending_age_seconds", ""),
    ("backlog_measured_timestamp_seconds", ""),
    ("messages_total", "result"),
    ("lease_lost_total", ""),
    ("leases", ""),
    ("sweep_found_total", ""),
    ("sweep_circle_seconds", ""),
    ("publish_duration_seconds_bucket", "le"),
    ("end_to_end_delay_seconds_bucket", "le"),
];

const OF_THE_PROCESS: [(&str, &str); 12] = [
    ("deduplication_rows", ""),
    ("deduplication_bytes", ""),
    ("deduplication_horizon_seconds", ""),
    ("request_rows", ""),
    ("request_bytes", ""),
    ("request_horizon_seconds", ""),
    ("claim_duration_seconds_bucket", "le"),
    ("database_pool_connections", "state"),
    ("transport_up", "transport"),
    ("transport_blocked", "transport"),
    ("schema_version", ""),
    ("build_info", "version"),
];

/// The label names of the first sample of a metric.
fn labels(text: &str, name: &str) -> Option<Vec<String>> {
    let line = text.lines().find(|line| {
        let rest = line
            .strip_prefix("postroom_")
            .and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with([' ', '{']))
    })?;
    let inside = line
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let pairs = inside.map_or("", |(inside, _)| inside).split(',');
    let names = pairs.filter_map(|pair| pair.split_once('=').map(|(name, _)| name.to_owned()));
    Some(names.collect())
}

fn have_the_right_labels(text: &str) -> Result<()> {
    let endpoint = [
        "resource_namespace",
        "resource_name",
        "endpoint",
        "direction",
    ];
    for (name, more) in OF_ENDPOINTS {
        let mut found = labels(text, name).unwrap_or_default();
        let mut wanted: Vec<_> = endpoint.iter().map(|&label| label.to_owned()).collect();
        wanted.extend((!more.is_empty()).then(|| more.to_owned()));
        found.sort();
        wanted.sort();
        ensure!(found == wanted, "{name}: {found:?}\n{text}");
    }
    for (name, more) in OF_THE_PROCESS {
        let found = labels(text, name);
        let wanted: Vec<_> = [more]
            .iter()
            .filter(|more| !more.is_empty())
            .map(|&more| more.to_owned())
            .collect();
        ensure!(found == Some(wanted), "{name}: {found:?}\n{text}");
    }
    Ok(())
}

/// Contract of the metrics, G12; L-rule: no label takes values without a bound.
#[tokio::test]
async fn the_metrics_have_the_promised_names_and_labels_and_count_what_happened() -> Result<()> {
    let postroom = Postroom::start("metrics", |resource| resource).await?;
    let worker = postroom.worker().await?;
    write(&postroom, &rows(3, 30)).await?;
    wait_settled(&postroom).await?;
    let settled = |_: u16, stats: &Value| {
        let outbox = &stats["endpoints"][0];
        outbox["pending"] == 0 && !outbox["last_delivery_time"].is_null()
    };
    worker
        .wait_stats("all is measured", PATIENCE, settled)
        .await?;
    let text = worker.metrics().await?;
    have_the_right_labels(&text)?;
    let ours = [
        ("resource_namespace", "tests"),
        ("resource_name", "shop"),
        ("endpoint", OUTBOX),
        ("direction", "Outbox"),
    ];
    let of = async |name: &str, label: (&'static str, &'static str)| {
        let labels: Vec<_> = ours.into_iter().chain([label]).collect();
        worker.metric(name, &labels).await
    };
    for (result, count) in [
        ("delivered", 30.0),
        ("retried", 0.0),
        ("dead_lettered", 0.0),
        ("unroutable", 0.0),
        ("nacked", 0.0),
        ("timed_out", 0.0),
    ] {
        let counted = of("postroom_messages_total", ("result", result)).await?;
        ensure!(counted == Some(count), "{result}: {counted:?}");
    }
    for state in ["pending", "in_flight", "deferred", "parked", "dead"] {
        let counted = of("postroom_backlog_messages", ("state", state)).await?;
        ensure!(counted == Some(0.0), "{state}: {counted:?}");
    }
    for histogram in [
        "postroom_publish_duration_seconds_count",
        "postroom_end_to_end_delay_seconds_count",
    ] {
        let counted = worker.metric(histogram, &ours).await?;
        ensure!(counted == Some(30.0), "{histogram}: {counted:?}");
    }
    ensure!(worker.metric("postroom_leases", &ours).await? == Some(64.0));
    for secret in ["stream-1", postroom.vhost.password()] {
        ensure!(!text.contains(secret), "{secret}");
    }
    Ok(())
}

/// Contract of `/stats`.
#[tokio::test]
async fn stats_tell_every_number_with_its_time_and_every_failure_with_its_reason() -> Result<()> {
    let postroom = Postroom::start("stats", |resource| {
        resource
            .with("outboxes.0.exchange", "picky")
            .with("outboxes.0.retry.initialDelaySeconds", 300)
            .with("outboxes.0.retry.jitter", "None")
    })
    .await?;
    postroom
        .vhost
        .declare_exchange("picky", lapin::ExchangeKind::Topic)
        .await?;
    postroom.vhost.bind(QUEUE, "picky", "known").await?;
    let worker = postroom.worker().await?;
    let batch = [
        row("a", "known", "1"),
        row("a", "lost", "2"),
        row("a", "known", "3"),
        row("b", "known", "4"),
    ];
    write(&postroom, &batch).await?;
    let stats = worker
        .wait_stats("the backlog is measured", PATIENCE, |_, stats| {
            stats["endpoints"][0]["deferred"] == 1 && stats["endpoints"][0]["parked"] == 1
        })
        .await?;
    let outbox = &stats["endpoints"][0];
    for (field, value) in [
        ("name", json!(OUTBOX)),
        ("direction", json!("Outbox")),
        ("pending", json!(0)),
        ("in_flight", json!(0)),
        ("dead", json!(0)),
        ("errors", json!({"Unroutable": 1})),
        ("leases", json!(64)),
    ] {
        ensure!(outbox[field] == value, "{field}: {outbox}");
    }
    for time in [&outbox["last_delivery_time"], &stats["measured_time"]] {
        let text = time.as_str().unwrap_or_default();
        ensure!(
            text.len() >= 20 && text.ends_with('Z') && text.contains('T'),
            "{stats}"
        );
    }
    ensure!(
        stats["known"] == true && stats["draining"] == false,
        "{stats}"
    );
    ensure!(
        condition(&stats, "endpoint", "Unroutable").is_some(),
        "{stats}"
    );
    Ok(())
}

/// Contract of `/stats`, G12.
#[tokio::test]
async fn what_was_never_measured_is_unknown_and_not_zero() -> Result<()> {
    let postroom = Postroom::start("unknown", |resource| resource).await?;
    let lost = postroom
        .launch("run")
        .database_url("postgres://u@127.0.0.1:1/x?sslmode=disable")
        .start()?;
    wait_condition(&lost, "database", "ConnectionRefused").await?;
    let (status, stats) = lost.stats().await?;
    ensure!(status == 503 && stats["known"] == false, "{status} {stats}");
    let outbox = &stats["endpoints"][0];
    for field in [
        "pending",
        "deferred",
        "parked",
        "dead",
        "oldest_pending_time",
    ] {
        ensure!(outbox[field].is_null(), "{field} is unknown: {outbox}");
    }
    ensure!(
        lost.metric("postroom_backlog_messages", &[])
            .await?
            .is_none(),
        "not zero either"
    );
    Ok(())
}

/// Two brokers, one of them away: each endpoint stands for itself.
#[tokio::test]
async fn two_endpoints_on_two_transports_work_side_by_side_and_fail_apart() -> Result<()> {
    let rabbit = RabbitServer::shared().await?;
    let proxy = TcpProxy::start(rabbit.port()).await?;
    let second = Vhost::create(rabbit, "second").await?;
    second
        .declare("ledger", "entries", &QueueArguments::classic(), "#")
        .await?;
    let postroom = Postroom::start("transports", |resource| {
        let second = json!({"name": "second-one", "rabbitmq": {"secretRef": {"name": "second"}, "tls": {"mode": "Disable"}}});
        resource
            .with("outboxes.0.transport", "main")
            .with("transports", json!([
                {"name": "main", "rabbitmq": {"secretRef": {"name": "broker"}, "tls": {"mode": "Disable"}}}, second
            ]))
            .outbox(Outbox::new("entries", "ledger").with("transport", "second-one"))
    })
    .await?;
    let entries = second.receive(&["entries"]).await?;
    let worker = postroom
        .launch("run")
        .env("AMQP_URL_SECOND_ONE", second.amqp_url_at(proxy.port()))
        .start()?;
    worker.ready(PATIENCE).await?;
    let mine = |count: usize| -> Vec<Row> {
        (0..count)
            .map(|n| row("entry", "", format!("entry {n}")))
            .collect()
    };
    write(&postroom, &rows(3, 30)).await?;
    write_to(&postroom, "entries", &mine(20)).await?;
    postroom.receiver.wait_for(30, PATIENCE).await?;
    let received = entries.wait_for(20, PATIENCE).await?;
    ensure!(
        received.iter().all(|message| message.exchange == "ledger"),
        "each to its own broker"
    );

    proxy.refuse().await?;
    proxy.reset_all();
    let shown = wait_condition(&worker, "transport", "ConnectionRefused").await?;
    ensure!(shown["name"] == "second-one", "{shown}");
    write_to(&postroom, "entries", &mine(20)).await?;
    write(&postroom, &rows(3, 30)).await?;
    postroom.receiver.wait_for(60, PATIENCE).await?;
    let up = async |transport: &str| {
        worker
            .metric("postroom_transport_up", &[("transport", transport)])
            .await
    };
    ensure!((up("main").await?, up("second-one").await?) == (Some(1.0), Some(0.0)));
    ensure!(entries.distinct() == 20, "the other one waits");
    proxy.accept().await?;
    entries.wait_for(40, RECOVERY).await?;
    wait_settled(&postroom).await?;
    wait_well(&worker).await.map(drop)
}

/// Pausing keeps the leases, so that nobody else begins either.
#[tokio::test]
async fn a_paused_endpoint_publishes_nothing_and_keeps_its_leases_until_it_is_resumed() -> Result<()>
{
    let postroom = Postroom::start("paused", |resource| {
        resource
            .with("outboxes.0.paused", true)
            .outbox(Outbox::new("other", EXCHANGE))
    })
    .await?;
    let worker = postroom.worker().await?;
    write(&postroom, &rows(3, 30)).await?;
    let others: Vec<Row> = (0..10).map(|n| row("other", "", n.to_string())).collect();
    write_to(&postroom, "other", &others).await?;
    postroom.receiver.wait_for(10, PATIENCE).await?;
    let paused = |_: u16, stats: &Value| {
        let outbox = &stats["endpoints"][0];
        outbox["paused"] == true
            && outbox["leases"] == 64
            && outbox["pending"] == 30
            && outbox["in_flight"] == 0
    };
    worker
        .wait_stats("it is paused, with its leases", PATIENCE, paused)
        .await?;
    let received = postroom
        .receiver
        .wait_quiet(Duration::from_secs(2), PATIENCE)
        .await?;
    ensure!(
        received.len() == 10,
        "only the other one publishes: {}",
        received.len()
    );
    ensure!(unsettled(&mut postroom.connect().await?).await? == 30);
    worker.sigterm()?;
    ensure!(worker.wait_exit(PATIENCE).await?.success());

    let resumed = postroom
        .resource
        .clone()
        .with("outboxes.0.paused", false)
        .write()?;
    let worker = postroom_tests::launch::Launch::run_resource(&resumed)
        .database_url(postroom.database.url())
        .amqp_url(postroom.vhost.amqp_url())
        .start()?;
    worker.ready(PATIENCE).await?;
    postroom.verdict(PATIENCE).await?.require(0)?;
    wait_settled(&postroom).await
}

/// F01, on a server where nothing else happens: the poll sees the position before the commit, and no snapshot lists the
/// youngest transaction as running.
#[tokio::test]
async fn a_message_whose_position_was_seen_before_its_commit_goes_out_right_after_it() -> Result<()>
{
    let postgres = PostgresServer::start(PostgresOptions::default()).await?;
    let rabbit = RabbitServer::shared().await?;
    let postroom = Postroom::start_on(&postgres, rabbit, "youngest", |resource| resource).await?;
    let worker = postroom
        .launch("run")
        .env("POSTROOM_SWEEP", "off")
        .start()?;
    worker.ready(PATIENCE).await?;
    write(&postroom, &rows(1, 1)).await?;
    postroom.receiver.wait_for(1, PATIENCE).await?;
    let mut session = postroom.connect().await?;
    for number in 2..5 {
        let mut transaction = session.begin().await?;
        let insert =
            "insert into postroom.outbox (endpoint, type, payload) values ('orders', 't', '1')";
        transaction.execute(insert).await?;
        let polls = Duration::from_millis(500);
        postroom.receiver.wait_quiet(polls, PATIENCE).await?;
        transaction.commit().await?;
        postroom
            .receiver
            .wait_for(number, Duration::from_secs(4))
            .await?;
    }
    Ok(())
}
