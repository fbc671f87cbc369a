//! Reservations over HTTP, once for each Idempotency-Key. Needs `DATABASE_URL` and `PORT`; tables: `../reservations.sql`.

use anyhow::{Context as _, Result};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

#[derive(serde::Deserialize, serde::Serialize)]
struct Order {
    item: String,
    quantity: i32,
}

/// Decides, or finds the decision, in one transaction. Answers the outcome, and whether it is a repeat.
async fn reserve(
    pool: &PgPool,
    tenant: &str,
    key: &str,
    order: &Order,
) -> Result<(StatusCode, Value, bool)> {
    let mut transaction = pool.begin().await?; // rolled back when it is dropped
    let begin = "select request_id, state, status, outcome from postroom.begin_request($1, 'reserve', $2, postroom.canonical_meaning($3::json))";
    let (request, state, status, outcome): (Uuid, String, Option<String>, Option<Value>) =
        sqlx::query_as(begin)
            .bind(tenant)
            .bind(key)
            .bind(json!(order))
            .fetch_one(&mut *transaction)
            .await?;
    let (status, outcome) = match state.as_str() {
        "conflict" => {
            return Ok((
                StatusCode::CONFLICT,
                json!({"error": "this key belongs to another request"}),
                false,
            ));
        }
        "new" => {
            let (status, outcome) = decide(&mut transaction, request, tenant, order).await?;
            sqlx::query("select postroom.finish_request($1, 'reserve', $2, $3, $4)")
                .bind(tenant)
                .bind(key)
                .bind(status)
                .bind(&outcome)
                .execute(&mut *transaction)
                .await?;
            (status.to_owned(), outcome)
        }
        _ => (status.unwrap_or_default(), outcome.unwrap_or_default()),
    };
    transaction.commit().await?;
    let code = if status == "accepted" {
        StatusCode::CREATED
    } else {
        StatusCode::UNPROCESSABLE_ENTITY
    };
    Ok((code, outcome, state == "replay"))
}

/// The business change with its message: both are committed with the outcome, or none of the three.
async fn decide(
    transaction: &mut PgConnection,
    request: Uuid,
    tenant: &str,
    order: &Order,
) -> Result<(&'static str, Value)> {
    let update = "update shop.stock set on_hand = on_hand - $1 where item = $2 and on_hand >= $1 returning on_hand";
    let left: Option<i32> = sqlx::query_scalar(update)
        .bind(order.quantity)
        .bind(&order.item)
        .fetch_optional(&mut *transaction)
        .await?;
    let Some(left) = left else {
        return Ok(("rejected", json!({"reason": "not enough on hand"})));
    };
    let enqueue = "select message_id from postroom.enqueue('orders', 'item.reserved', $1::text, stream => $2, request_id => $3)";
    let message: Uuid = sqlx::query_scalar(enqueue)
        .bind(json!(order).to_string())
        .bind(&order.item)
        .bind(request)
        .fetch_one(&mut *transaction)
        .await?;
    sqlx::query("insert into shop.reservation values ($1, $2, $3, $4, $5)")
        .bind(request)
        .bind(tenant)
        .bind(&order.item)
        .bind(order.quantity)
        .bind(message)
        .execute(transaction)
        .await?;
    Ok(("accepted", json!({"left": left, "message_id": message})))
}

async fn handle(State(pool): State<PgPool>, headers: HeaderMap, body: String) -> Response {
    // The tenant stands for what your authentication says; never take it from the client's own words.
    let header = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    let (tenant, key) = (header("x-tenant"), header("idempotency-key"));
    let Ok(order) = serde_json::from_str(&body) else {
        return (
            StatusCode::BAD_REQUEST,
            Json(json!({"error": "send {\"item\": text, \"quantity\": number}"})),
        )
            .into_response();
    };
    if key.is_empty() {
        return (
            StatusCode::BAD_REQUEST,
            Json(json!({"error": "send the header Idempotency-Key"})),
        )
            .into_response();
    }
    match reserve(&pool, &tenant, &key, &order).await {
        Err(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            Json(json!({"error": "failed"})),
        )
            .into_response(),
        Ok((code, outcome, true)) => {
            (code, [("idempotency-replayed", "true")], Json(outcome)).into_response()
        }
        Ok((code, outcome, false)) => (code, Json(outcome)).into_response(),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let pool = PgPool::connect_lazy(&std::env::var("DATABASE_URL").context("DATABASE_URL")?)?;
    let address = format!("127.0.0.1:{}", std::env::var("PORT").context("PORT")?);
    let app = Router::new()
        .route("/reservations", post(handle))
        .with_state(pool);
    axum::serve(tokio::net::TcpListener::bind(address).await?, app).await?;
    Ok(())
}
