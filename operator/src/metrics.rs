//! What the operator counts.

use std::time::Duration;

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

/// The counts of this process.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    reconciles: IntCounter,
    errors: IntCounterVec,
    duration: Histogram,
    leader: IntGauge,
}

impl Metrics {
    /// Counts that begin at zero.
    ///
    /// # Errors
    /// When two of them have the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let metrics = Self {
            registry: Registry::new(),
            reconciles: IntCounter::new("postroom_reconcile_total", "Passes over a resource")?,
            errors: IntCounterVec::new(
                Opts::new(
                    "postroom_reconcile_errors_total",
                    "Passes that did not come to their end",
                ),
                &["reason"],
            )?,
            duration: Histogram::with_opts(HistogramOpts::new(
                "postroom_reconcile_duration_seconds",
                "Time of a pass",
            ))?,
            leader: IntGauge::new(
                "postroom_leader",
                "Whether this process works; the others stand by",
            )?,
        };
        let build = IntGaugeVec::new(
            Opts::new("postroom_build_info", "The version, as a label"),
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        metrics
            .registry
            .register(Box::new(metrics.reconciles.clone()))?;
        metrics
            .registry
            .register(Box::new(metrics.errors.clone()))?;
        metrics
            .registry
            .register(Box::new(metrics.duration.clone()))?;
        metrics
            .registry
            .register(Box::new(metrics.leader.clone()))?;
        metrics.registry.register(Box::new(build))?;
        Ok(metrics)
    }

    /// A pass has ended; `error` says why it did not come to its end.
    pub fn reconciled(&self, took: Duration, error: Option<&str>) {
        self.reconciles.inc();
        self.duration.observe(took.as_secs_f64());
        if let Some(reason) = error {
            self.errors.with_label_values(&[reason]).inc();
        }
    }

    /// Whether this process works.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// As Prometheus reads it.
    ///
    /// # Errors
    /// When a count has no text form.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}
