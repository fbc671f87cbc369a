//! The HTTP port: `/livez`, `/readyz`, `/metrics`, `/stats`.
//!
//! Invariant: liveness looks at this process alone; a database or broker that is away never restarts a worker.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;

use crate::metrics::{METRICS, open_metrics};
use crate::reason::Reason;
use crate::status::Status;
use crate::store::Direction;

/// What the port answers from.
#[derive(Debug, Clone)]
pub struct Served {
    /// Namespace of the resource.
    pub namespace: String,
    /// Name of the resource.
    pub name: String,
    /// Endpoints, in the order of the resource.
    pub endpoints: Vec<(String, Direction)>,
    /// Status.
    pub status: Status,
}

/// Opens the port, or says why it cannot.
pub async fn open(address: SocketAddr) -> Result<TcpListener, Reason> {
    TcpListener::bind(address).await.map_err(|error| {
        Reason::new(
            "AddressInUse",
            format!("the HTTP address {address} cannot be opened: {error}"),
            "Choose another one with --http-address or POSTROOM_HTTP_ADDRESS.",
        )
    })
}

/// Answers until the task is ended.
pub async fn serve(listener: TcpListener, served: Served) {
    let app = Router::new()
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/stats", get(stats))
        .with_state(Arc::new(served));
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!("The HTTP port ended: {error}");
    }
}

async fn readyz(State(served): State<Arc<Served>>) -> Response {
    if served.status.is_ready() {
        (StatusCode::OK, "ok").into_response()
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "no database session is held, or the process drains; see /stats",
        )
            .into_response()
    }
}

async fn metrics(State(served): State<Arc<Served>>, headers: HeaderMap) -> Response {
    let text = METRICS.text(
        &served.namespace,
        &served.name,
        &served.endpoints,
        &served.status,
    );
    let accepts_open = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("application/openmetrics-text"));
    let (kind, text) = if accepts_open {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        (kind, open_metrics(&text))
    } else {
        ("text/plain; version=0.0.4", text)
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn stats(State(served): State<Arc<Served>>) -> Response {
    let (known, report) = served.status.report(&served.endpoints);
    let code = if known {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, Json(report)).into_response()
}
