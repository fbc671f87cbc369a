//! Brings one resource to what it asks for, and keeps doing so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::events::Recorder;
use kube::runtime::reflector::store::WriterDropped;
use kube::runtime::{Controller, watcher};
use kube::{Client, ResourceExt};
use postroom_crds::inbox_outbox::InboxOutbox;

use crate::apply::{NotApplied, Settled, apply};
use crate::caches::{self, Caches};
use crate::metrics::Metrics;
use crate::observe::observe;
use crate::plan::{Settings, conditions, plan};
use crate::report::report;
use crate::stats::Reader;

/// Pause after an error, most often an API server that is away.
const AFTER_ERROR: Duration = Duration::from_secs(5);
/// Pause after a refusal; what a person changes in the resource is seen at once.
const AFTER_REFUSAL: Duration = Duration::from_secs(30);
/// Resources that are worked on at once.
const AT_ONCE: u16 = 4;

/// What a reconciliation needs.
#[derive(Clone)]
pub struct Context {
    /// The way to the API server.
    pub client: Client,
    /// What all resources have in common.
    pub settings: Settings,
    /// Tells events.
    pub recorder: Recorder,
    /// Counts.
    pub metrics: Metrics,
}

/// Why a reconciliation did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The watches ended, because this process stops.
    #[error("the watches have ended")]
    Stopping(#[from] WriterDropped),
}

impl Error {
    /// What happened, without the whole answer of the API server.
    fn told(&self) -> String {
        match self {
            Self::Api(kube::Error::Api(status)) => status.message.clone(),
            Self::Api(_) | Self::Stopping(_) => self.to_string(),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Api(kube::Error::Api(_)) => "Refused",
            Self::Api(_) => "Unreachable",
            Self::Stopping(_) => "Stopping",
        }
    }
}

/// A controller of one namespace, or of all.
struct Scope {
    context: Context,
    caches: Caches,
    reader: Reader,
    settled: Settled,
}

/// Works on the resources of `namespace`, or of all, until it is dropped.
pub async fn control(context: Context, namespace: Option<String>) {
    let resources = caches::api::<InboxOutbox>(&context.client, namespace.as_deref());
    let (caches, touched) = Caches::new(&context.client, namespace.as_deref());
    let scope = Scope {
        context,
        caches,
        reader: Reader::default(),
        settled: Settled::default(),
    };
    let settings = kube::runtime::controller::Config::default().concurrency(AT_ONCE);
    Controller::new(resources, watcher::Config::default())
        .with_config(settings)
        .reconcile_on(touched)
        .run(reconcile, after_error, Arc::new(scope))
        .for_each(|outcome| {
            if let Err(kube::runtime::controller::Error::QueueError(error)) = outcome {
                tracing::warn!(
                    "The watch of inboxoutboxes was interrupted and begins again: {error}"
                );
            }
            futures::future::ready(())
        })
        .await;
}

async fn reconcile(resource: Arc<InboxOutbox>, scope: Arc<Scope>) -> Result<Action, Error> {
    // What it had made goes by itself, through the owner references; the database keeps what it has.
    if resource.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    scope.caches.filled().await?;
    let began = Instant::now();
    let outcome = pass(&resource, &scope).await;
    scope
        .context
        .metrics
        .reconciled(began.elapsed(), outcome.as_ref().err().map(Error::reason));
    outcome
}

/// Brings the cluster to what `resource` asks for, then reports what is true.
async fn pass(resource: &InboxOutbox, scope: &Scope) -> Result<Action, Error> {
    let Context {
        client,
        settings,
        recorder,
        ..
    } = &scope.context;
    let seen = observe(resource, &scope.caches, &scope.reader).await;
    let now = Timestamp::now();
    let mut plan = plan(resource, &seen, settings, now);
    let mut look_again = plan.look_again;
    match apply(client, &scope.settled, resource, &plan, &seen).await {
        Ok(()) => {}
        Err(NotApplied::Refused(why)) => {
            let generation = resource.metadata.generation;
            conditions::refused(&mut plan.status.conditions, &why, generation, now);
            look_again = AFTER_REFUSAL;
        }
        Err(NotApplied::Failed(error)) => return Err(error.into()),
    }
    report(client, recorder, resource, &plan.status, now).await?;
    Ok(Action::requeue(look_again))
}

fn after_error(resource: Arc<InboxOutbox>, error: &Error, _scope: Arc<Scope>) -> Action {
    let namespace = resource.namespace().unwrap_or_default();
    tracing::warn!(
        "{namespace}/{} could not be worked on: {}",
        resource.name_any(),
        error.told()
    );
    Action::requeue(AFTER_ERROR)
}
