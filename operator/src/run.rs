//! `postroom-operator run`: waits for its turn, works while it is leader, stops on a signal.

use std::net::SocketAddr;

use futures::future::join_all;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use postroom_crds::names::OPERATOR;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::http;
use crate::leader::Candidate;
use crate::metrics::Metrics;
use crate::plan::Settings;
use crate::reconcile::{Context, control};

/// What a run is given.
#[derive(Debug, Clone)]
pub struct Run {
    /// What all resources have in common.
    pub settings: Settings,
    /// Namespaces to work in; all if there is none.
    pub namespaces: Vec<String>,
    /// Namespace of the Lease.
    pub own_namespace: String,
    /// A name that no other operator has.
    pub identity: String,
    /// Address for probes and metrics.
    pub http_address: SocketAddr,
}

/// Works until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot even begin.
pub async fn run(run: Run) -> Result<(), String> {
    let client = Client::try_default().await.map_err(|error| {
        format!("no way to an API server is known: {error}. Run in a pod with a service account, or set KUBECONFIG")
    })?;
    let listener = TcpListener::bind(run.http_address).await.map_err(|error| {
        format!(
            "the HTTP address {} cannot be opened: {error}. Choose another one with --http-address",
            run.http_address
        )
    })?;
    let metrics = Metrics::new().map_err(|error| error.to_string())?;
    let reporter = Reporter {
        controller: OPERATOR.to_owned(),
        instance: Some(run.identity.clone()),
    };
    let context = Context {
        client: client.clone(),
        settings: run.settings.clone(),
        recorder: Recorder::new(client.clone(), reporter),
        metrics: metrics.clone(),
    };
    let mut candidate = Candidate::new(client, &run.own_namespace, run.identity.clone());
    let stop = stop_signal()?;
    tokio::select! {
        ended = http::serve(listener, metrics.clone()) => return ended.map_err(|error| format!("the HTTP port was lost: {error}")),
        () = lead(&mut candidate, &context, &run.namespaces) => {}
        () = stop => {}
    }
    metrics.leads(false);
    candidate.release().await;
    tracing::info!("Stopped");
    Ok(())
}

/// Works whenever it is our turn, for ever.
async fn lead(candidate: &mut Candidate, context: &Context, namespaces: &[String]) {
    loop {
        tracing::info!("Standing by");
        candidate.win().await;
        tracing::info!("Leading");
        context.metrics.leads(true);
        tokio::select! {
            () = work(context, namespaces) => {}
            () = candidate.hold() => {}
        }
        context.metrics.leads(false);
    }
}

async fn work(context: &Context, namespaces: &[String]) {
    let scopes: Vec<Option<String>> = match namespaces {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    join_all(
        scopes
            .into_iter()
            .map(|scope| control(context.clone(), scope)),
    )
    .await;
}

fn stop_signal() -> Result<impl Future<Output = ()>, String> {
    let listen =
        |kind| signal(kind).map_err(|error| format!("signals cannot be received: {error}"));
    let (mut terminate, mut interrupt) = (
        listen(SignalKind::terminate())?,
        listen(SignalKind::interrupt())?,
    );
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
