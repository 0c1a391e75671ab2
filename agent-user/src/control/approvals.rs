//! What waits for a person, and what persons decide.

use axum::extract::{Path as UrlPath, State as Shared};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{App, carry_out, respond};
use crate::decide::stop::Operator;

/// A person's decision.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecideOrder {
    pub reason: String,
}

/// The routes.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/approvals", get(list))
        .route("/v1/approvals/{id}", get(show))
        .route("/v1/approvals/{id}/approve", post(approve))
        .route("/v1/approvals/{id}/refuse", post(refuse))
}

async fn list(Shared(control): Shared<App>) -> Json<Value> {
    let waiting = control.parts.approvals.list();
    Json(json!({"approvals": waiting.iter().map(|question| json!(**question)).collect::<Vec<_>>()}))
}

async fn show(Shared(control): Shared<App>, UrlPath(id): UrlPath<String>) -> Response {
    respond(control.parts.approvals.show(&id), StatusCode::NOT_FOUND)
}

async fn approve(
    Shared(control): Shared<App>,
    Extension(by): Extension<Operator>,
    UrlPath(id): UrlPath<String>,
    Json(order): Json<DecideOrder>,
) -> Response {
    decide(control, id, true, order, by).await
}

async fn refuse(
    Shared(control): Shared<App>,
    Extension(by): Extension<Operator>,
    UrlPath(id): UrlPath<String>,
    Json(order): Json<DecideOrder>,
) -> Response {
    decide(control, id, false, order, by).await
}

async fn decide(control: App, id: String, approve: bool, order: DecideOrder, by: Operator) -> Response {
    let decided = async move { control.parts.approvals.decide(&id, approve, &order.reason, by).await };
    carry_out(decided, StatusCode::CONFLICT).await
}
