//! The outbox of an endpoint: the engine with channels of the broker as its runners.
//!
//! ```text
//! outbox rows -> engine -> one task for each channel (publish) -> confirm -> the row is deleted
//! ```

pub mod publish;
pub mod wire;

use std::sync::Arc;

use postroom_crds::routing_key::{Part, Template};
use postroom_crds::worker_config::OutboxConfig;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::broker::Transport;
use crate::engine::lanes::Limits;
use crate::engine::runners::Runners;
use crate::engine::{self, Settings, Shared};
use crate::store::Direction;
use publish::Publisher;

/// Serves an outbox until the process has drained.
pub async fn serve(
    shared: Shared,
    config: Arc<OutboxConfig>,
    transport: watch::Receiver<Transport>,
) {
    let room = config.delivery.max_in_flight as usize + 64;
    let (reports_to, reports) = mpsc::channel(room);
    // Checked with the resource; a template that cannot be read is taken as it stands.
    let template = Template::parse(&config.routing_key).unwrap_or_else(|_| Template {
        parts: vec![Part::Text(config.routing_key.clone())],
    });
    let template = Arc::new(template);
    let mut tasks = JoinSet::new();
    let channels = (0..config.delivery.channels as usize).map(|channel| {
        let (orders, taken) = mpsc::channel(room);
        let publisher = Publisher {
            channel,
            config: config.clone(),
            template: template.clone(),
            trust: shared.trust.clone(),
            duration: shared.metrics.duration.clone(),
        };
        tasks.spawn(publish::run(
            publisher,
            transport.clone(),
            taken,
            reports_to.clone(),
        ));
        orders
    });
    let runners = Runners::new(channels);
    drop(reports_to);
    engine::serve(shared, runners, reports).await;
    tasks.shutdown().await;
}

/// What the engine needs to know of an outbox.
pub fn settings(config: &OutboxConfig) -> Settings {
    let delivery = &config.delivery;
    Settings {
        name: config.name.clone(),
        direction: Direction::Outbox,
        paused: config.paused,
        batch_size: delivery.batch_size as usize,
        limits: Limits {
            messages: delivery.max_in_flight as usize,
            bytes: delivery.max_in_flight_bytes,
        },
        max_message_bytes: delivery.max_message_bytes,
        bodies: true,
        ordering: config.ordering,
        retry: config.retry,
        on_unroutable: config.on_unroutable,
        target: format!("exchange '{}'", config.exchange),
    }
}
