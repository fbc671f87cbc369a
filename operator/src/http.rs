//! The HTTP port: `/livez`, `/readyz`, `/metrics`. Those that stand by serve it as well.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// Answers until it is dropped.
///
/// # Errors
/// When the port is lost.
pub async fn serve(listener: TcpListener, metrics: Metrics) -> Result<(), std::io::Error> {
    // An API server that is away makes no operator unready: nothing would be better with another one.
    let app = Router::new()
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(async || "ok"))
        .route("/metrics", get(text))
        .with_state(metrics);
    axum::serve(listener, app).await
}

async fn text(State(metrics): State<Metrics>) -> Response {
    match metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
