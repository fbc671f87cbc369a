//! The Prometheus metrics. Names and labels are part of the contract; no tenant, message id or routing key is ever a label.

use std::sync::LazyLock;

use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::status::Status;
use crate::store::{Direction, RepeatMemory};

/// Labels that say which endpoint of which resource.
const ENDPOINT: [&str; 4] = [
    "resource_namespace",
    "resource_name",
    "endpoint",
    "direction",
];

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    backlog: IntGaugeVec,
    oldest: GaugeVec,
    measured: GaugeVec,
    messages: IntCounterVec,
    ack_failed: IntCounterVec,
    consumers: IntGaugeVec,
    consumer_starts: IntCounterVec,
    lease_lost: IntCounterVec,
    leases: IntGaugeVec,
    sweep_found: IntCounterVec,
    sweep_circle: GaugeVec,
    publish: HistogramVec,
    handler: HistogramVec,
    end_to_end: HistogramVec,
    maintenance: IntCounterVec,
    transport_up: IntGaugeVec,
    transport_blocked: IntGaugeVec,
    connections: IntGaugeVec,
    /// Identities of messages.
    pub deduplication: MemoryMetrics,
    /// Outcomes of requests.
    pub requests: MemoryMetrics,
    /// Duration of `claim_work`.
    pub claim: Histogram,
}

/// The one set of metrics.
pub static METRICS: LazyLock<Metrics> =
    LazyLock::new(|| Metrics::new().expect("the metric names are well formed and distinct"));

fn with<const N: usize>(more: [&'static str; N]) -> Vec<&'static str> {
    ENDPOINT.iter().copied().chain(more).collect()
}

/// A memory by which repeats are recognised.
#[derive(Debug)]
pub struct MemoryMetrics {
    rows: IntGauge,
    bytes: IntGauge,
    horizon: Gauge,
}

impl MemoryMetrics {
    fn new(make: &Maker, name: &str, what: &str) -> prometheus::Result<Self> {
        let size = |suffix: &str, help: String| {
            let gauge = make.int_gauge(&format!("{name}_{suffix}"), &help, &[])?;
            Ok::<_, prometheus::Error>(gauge.with_label_values::<&str>(&[]))
        };
        let help = format!("{what}: for so long a repeat is recognised");
        let horizon = make.gauge(&format!("{name}_horizon_seconds"), &help, &[])?;
        Ok(Self {
            rows: size(
                "rows",
                format!("{what} that are remembered, as the server last estimated them"),
            )?,
            bytes: size(
                "bytes",
                format!("{what}: disk space of the memory, indexes included"),
            )?,
            horizon: horizon.with_label_values::<&str>(&[]),
        })
    }

    /// It was measured.
    pub fn set(&self, memory: &RepeatMemory) {
        self.rows.set(memory.rows);
        self.bytes.set(memory.bytes);
        self.horizon.set(memory.horizon_seconds);
    }
}

/// Makes metrics and registers each one.
struct Maker(Registry);

impl Maker {
    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        let gauge = GaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    fn int_gauge(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntGaugeVec> {
        let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    fn counter(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    /// Seconds, from a millisecond to half a minute.
    fn histogram(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<HistogramVec> {
        let buckets = prometheus::exponential_buckets(0.000_5, 2.0, 17)?;
        let histogram = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels)?;
        self.0.register(Box::new(histogram.clone()))?;
        Ok(histogram)
    }
}

impl Metrics {
    #[expect(clippy::too_many_lines, reason = "a table: one entry for each metric")]
    fn new() -> prometheus::Result<Self> {
        let make = Maker(Registry::new_custom(Some("postroom".to_owned()), None)?);
        let build = make.int_gauge(
            "build_info",
            "Always 1; the version is a label",
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let schema = make.int_gauge(
            "schema_version",
            "Version of the schema this worker needs",
            &[],
        )?;
        schema
            .with_label_values::<&str>(&[])
            .set(i64::from(crate::migrate::newest_version()));
        Ok(Self {
            backlog: make.int_gauge(
                "backlog_messages",
                "Messages of the endpoint that are not settled, by state",
                &with(["state"]),
            )?,
            oldest: make.gauge(
                "oldest_pending_age_seconds",
                "Age of the oldest pending message",
                &ENDPOINT,
            )?,
            measured: make.gauge(
                "backlog_measured_timestamp_seconds",
                "When the backlog was measured",
                &ENDPOINT,
            )?,
            messages: make.counter("messages_total", "Messages by result", &with(["result"]))?,
            ack_failed: make.counter(
                "ack_failed_after_accept_total",
                "Acknowledgements that failed after what they acknowledge was stored; the broker delivers it again",
                &ENDPOINT,
            )?,
            consumers: make.int_gauge(
                "consumers_active",
                "Whether this worker consumes the queue of the inbox",
                &ENDPOINT,
            )?,
            consumer_starts: make.counter(
                "consumer_starts_total",
                "How often this worker began to consume the queue of the inbox",
                &ENDPOINT,
            )?,
            lease_lost: make.counter(
                "lease_lost_total",
                "Partitions whose lease was lost",
                &ENDPOINT,
            )?,
            leases: make.int_gauge("leases", "Partitions held by this worker", &ENDPOINT)?,
            sweep_found: make.counter(
                "sweep_found_total",
                "Messages that reading missed and the sweep found",
                &ENDPOINT,
            )?,
            sweep_circle: make.gauge(
                "sweep_circle_seconds",
                "Duration of the last full circle of the sweep",
                &ENDPOINT,
            )?,
            publish: make.histogram(
                "publish_duration_seconds",
                "From hand-out to the broker's answer",
                &ENDPOINT,
            )?,
            handler: make.histogram(
                "handler_duration_seconds",
                "One transaction of the handler, divided by its messages",
                &ENDPOINT,
            )?,
            end_to_end: make.histogram(
                "end_to_end_delay_seconds",
                "From the writing of a message to the broker's confirm, or from its acceptance to its effect",
                &ENDPOINT,
            )?,
            maintenance: make.counter(
                "maintenance_rows_total",
                "Rows removed by upkeep",
                &["task"],
            )?,
            transport_up: make.int_gauge(
                "transport_up",
                "Whether the transport is connected",
                &["transport"],
            )?,
            transport_blocked: make.int_gauge(
                "transport_blocked",
                "Whether the broker blocks publishing",
                &["transport"],
            )?,
            connections: make.int_gauge(
                "database_pool_connections",
                "Connections to the database",
                &["state"],
            )?,
            deduplication: MemoryMetrics::new(&make, "deduplication", "Identities of messages")?,
            requests: MemoryMetrics::new(&make, "request", "Outcomes of requests")?,
            claim: make
                .histogram("claim_duration_seconds", "Duration of claim_work", &[])?
                .with_label_values::<&str>(&[]),
            registry: make.0,
        })
    }

    /// The metrics as Prometheus text, with the last measurement filled in.
    pub fn text(
        &self,
        namespace: &str,
        name: &str,
        endpoints: &[(String, Direction)],
        status: &Status,
    ) -> String {
        self.backlog.reset();
        self.oldest.reset();
        self.measured.reset();
        if let Some((rows, age)) = status.backlog() {
            for row in rows {
                let labels = [namespace, name, &row.endpoint, &row.direction];
                let states = [
                    ("pending", row.pending),
                    ("in_flight", row.in_flight),
                    ("deferred", row.deferred),
                    ("parked", row.parked),
                    ("dead", row.dead),
                ];
                for (state, value) in states {
                    let [a, b, c, d] = labels;
                    self.backlog
                        .with_label_values(&[a, b, c, d, state])
                        .set(value);
                }
                self.oldest
                    .with_label_values(&labels)
                    .set(row.oldest_pending_age_seconds.unwrap_or(0.0));
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "seconds since 1970 are far below 2^52"
                )]
                self.measured
                    .with_label_values(&labels)
                    .set(crate::clock::now().saturating_sub(age.as_secs()) as f64);
            }
        }
        let counts = status.counts();
        for (endpoint, direction) in endpoints {
            let leases = counts.get(endpoint).map_or(0, |counts| counts.leases);
            self.leases
                .with_label_values(&[namespace, name, endpoint, direction.name()])
                .set(i64::try_from(leases).unwrap_or(i64::MAX));
        }
        let mut text = Vec::new();
        if TextEncoder::new()
            .encode(&self.registry.gather(), &mut text)
            .is_err()
        {
            text.clear();
        }
        String::from_utf8(text).unwrap_or_default()
    }

    /// The metrics of one endpoint.
    pub fn endpoint(
        &self,
        namespace: &str,
        name: &str,
        endpoint: &str,
        direction: Direction,
    ) -> EndpointMetrics {
        let labels = [namespace, name, endpoint, direction.name()];
        let result = |result: &str| {
            self.messages
                .with_label_values(&[namespace, name, endpoint, direction.name(), result])
        };
        let (done, duration) = match direction {
            Direction::Outbox => ("delivered", &self.publish),
            Direction::Inbox => ("processed", &self.handler),
        };
        EndpointMetrics {
            done: result(done),
            retried: result("retried"),
            dead_lettered: result("dead_lettered"),
            unroutable: result("unroutable"),
            nacked: result("nacked"),
            timed_out: result("timed_out"),
            lease_lost: self.lease_lost.with_label_values(&labels),
            sweep_found: self.sweep_found.with_label_values(&labels),
            sweep_circle: self.sweep_circle.with_label_values(&labels),
            duration: duration.with_label_values(&labels),
            end_to_end: self.end_to_end.with_label_values(&labels),
        }
    }

    /// What an inbox counts while it receives.
    pub fn ingress(&self, namespace: &str, name: &str, endpoint: &str) -> IngressMetrics {
        let direction = Direction::Inbox.name();
        let labels = [namespace, name, endpoint, direction];
        let result = |result: &str| {
            self.messages
                .with_label_values(&[namespace, name, endpoint, direction, result])
        };
        IngressMetrics {
            accepted: result("accepted"),
            duplicate: result("duplicate"),
            conflict: result("conflict"),
            refused: result("refused"),
            discarded: result("discarded"),
            ack_failed: self.ack_failed.with_label_values(&labels),
            consumers: self.consumers.with_label_values(&labels),
            consumer_starts: self.consumer_starts.with_label_values(&labels),
        }
    }

    /// Upkeep removed rows.
    pub fn maintained(&self, task: &str, rows: i64) {
        self.maintenance
            .with_label_values(&[task])
            .inc_by(rows.try_into().unwrap_or_default());
    }

    /// State of a transport.
    pub fn transport(&self, transport: &str, up: bool, blocked: bool) {
        self.transport_up
            .with_label_values(&[transport])
            .set(i64::from(up));
        self.transport_blocked
            .with_label_values(&[transport])
            .set(i64::from(blocked));
    }

    /// A session with the database was made (+1) or ended (-1).
    pub fn connection(&self, change: i64) {
        self.connections.with_label_values(&["open"]).add(change);
    }
}

/// Prometheus text as `OpenMetrics` 1.0: a counter is described without the suffix of its samples, and the end is marked.
pub fn open_metrics(text: &str) -> String {
    let mut answer = String::with_capacity(text.len() + 8);
    for line in text.lines() {
        let described = ["# HELP ", "# TYPE "]
            .iter()
            .any(|start| line.starts_with(start));
        if described {
            answer.push_str(&line.replacen("_total ", " ", 1));
        } else {
            answer.push_str(line);
        }
        answer.push('\n');
    }
    answer.push_str("# EOF\n");
    answer
}

/// The metrics of one endpoint, with their labels filled in.
#[derive(Debug, Clone)]
pub struct EndpointMetrics {
    /// Confirmed and not returned, or handled.
    pub done: prometheus::IntCounter,
    /// Put off after a failure.
    pub retried: prometheus::IntCounter,
    /// Given up.
    pub dead_lettered: prometheus::IntCounter,
    /// Returned.
    pub unroutable: prometheus::IntCounter,
    /// Refused by the broker.
    pub nacked: prometheus::IntCounter,
    /// Not confirmed in time, or the channel went away.
    pub timed_out: prometheus::IntCounter,
    /// Leases lost.
    pub lease_lost: prometheus::IntCounter,
    /// Found by the sweep alone.
    pub sweep_found: prometheus::IntCounter,
    /// Duration of a circle of the sweep.
    pub sweep_circle: prometheus::Gauge,
    /// From hand-out to the broker's answer; or of one call of the handler.
    pub duration: Histogram,
    /// From writing to confirm, or from acceptance to the effect.
    pub end_to_end: Histogram,
}

/// What an inbox counts while it receives, with the labels filled in.
#[derive(Debug, Clone)]
pub struct IngressMetrics {
    /// Stored.
    pub accepted: prometheus::IntCounter,
    /// Stored before.
    pub duplicate: prometheus::IntCounter,
    /// The same identity with another meaning.
    pub conflict: prometheus::IntCounter,
    /// Kept as a dead letter, because it cannot become a message.
    pub refused: prometheus::IntCounter,
    /// Acknowledged by rule, and not kept.
    pub discarded: prometheus::IntCounter,
    /// Not acknowledged although stored.
    pub ack_failed: prometheus::IntCounter,
    /// Consumers now.
    pub consumers: prometheus::IntGauge,
    /// Consumers so far.
    pub consumer_starts: prometheus::IntCounter,
}

#[cfg(test)]
mod tests {
    use super::open_metrics;

    #[test]
    fn open_metrics_describe_a_counter_without_its_suffix_and_mark_the_end() {
        let text = "# HELP a_total Things in total \n# TYPE a_total counter\na_total{x=\"_total \"} 1\n# HELP b Age\n# TYPE b gauge\nb 2\n";
        let expected = "# HELP a Things in total \n# TYPE a counter\na_total{x=\"_total \"} 1\n# HELP b Age\n# TYPE b gauge\nb 2\n# EOF\n";
        assert_eq!(open_metrics(text), expected);
    }
}
