//! What servers show to models, and what persons say of it.

use axum::extract::{Path as UrlPath, Query, State as Shared};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{App, carry_out, respond};
use crate::baseline::{Change, Filter, Kept, Order, Review, Summary, Wanted};
use crate::decide::stop::Operator;
use crate::fingerprint::{changes, patch};
use crate::parts::Parts;
use crate::record::entry::{Entry, SurfaceEntry};

/// A person's decision on what servers show.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolsOrder {
    pub ids: Vec<String>,
    pub reason: String,
}

/// A file that says what is trusted.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportOrder {
    pub baseline: String,
    pub reason: String,
}

/// The routes.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/tools", get(list))
        .route("/v1/tools/{id}", get(show))
        .route("/v1/tools/approve", post(approve))
        .route("/v1/tools/block", post(block))
        .route("/v1/baseline", get(export).post(import))
}

async fn list(Shared(control): Shared<App>, Query(wanted): Query<Filter>) -> Json<Value> {
    let baseline = &control.parts.baseline;
    let tools: Vec<Value> = baseline.list(&wanted).iter().map(summary).collect();
    Json(json!({"tools": tools, "fault": baseline.fault()}))
}

async fn show(Shared(control): Shared<App>, UrlPath(id): UrlPath<String>) -> Response {
    let shown = match control.parts.baseline.show(&id).await {
        // Long texts are compared: orders must not wait for it.
        Ok(found) => tokio::task::spawn_blocking(move || review(&found)).await.map_err(anyhow::Error::from),
        Err(refusal) => Err(refusal.into()),
    };
    respond(shown, StatusCode::NOT_FOUND)
}

async fn approve(
    Shared(control): Shared<App>,
    Extension(by): Extension<Operator>,
    Json(order): Json<ToolsOrder>,
) -> Response {
    decide(control, order, by, true).await
}

async fn block(
    Shared(control): Shared<App>,
    Extension(by): Extension<Operator>,
    Json(order): Json<ToolsOrder>,
) -> Response {
    decide(control, order, by, false).await
}

async fn decide(control: App, order: ToolsOrder, by: Operator, approve: bool) -> Response {
    let decided = async move {
        let given = given(order.reason, by)?;
        let baseline = &control.parts.baseline;
        let mut changes = Vec::new();
        for id in &order.ids {
            changes.extend(match approve {
                true => baseline.approve(id, given.clone()).await?,
                false => baseline.block(id, given.clone()).await?,
            });
        }
        Ok(report(&control.parts, &changes, &given))
    };
    carry_out(decided, StatusCode::CONFLICT).await
}

async fn export(Shared(control): Shared<App>, Query(wanted): Query<Wanted>) -> Response {
    let exported = control.parts.baseline.export(wanted).await;
    let exported = exported.map(|baseline| json!({"baseline": baseline}));
    respond(exported.map_err(anyhow::Error::from), StatusCode::CONFLICT)
}

async fn import(
    Shared(control): Shared<App>,
    Extension(by): Extension<Operator>,
    Json(order): Json<ImportOrder>,
) -> Response {
    let imported = async move {
        let given = given(order.reason, by)?;
        let changes = control.parts.baseline.import(&order.baseline, given.clone()).await?;
        Ok(report(&control.parts, &changes, &given))
    };
    carry_out(imported, StatusCode::CONFLICT).await
}

fn given(reason: String, by: Operator) -> anyhow::Result<Order> {
    anyhow::ensure!(!reason.trim().is_empty(), "give a reason; it is kept with the decision");
    Ok(Order { by, reason, at: Timestamp::now() })
}

/// Records what an order has changed.
fn report(parts: &Parts, changes: &[Change], order: &Order) -> Value {
    for change in changes {
        let (by, reason) = (Some(&order.by), Some(&*order.reason));
        parts.log.record(&Entry::Surface(SurfaceEntry { by, reason, ..SurfaceEntry::new(change) }));
    }
    parts.metrics.count_surfaces(&parts.baseline);
    let changes: Vec<SurfaceEntry<'_>> = changes.iter().map(SurfaceEntry::new).collect();
    json!({"changes": changes, "by": order.by})
}

fn summary(item: &Summary) -> Value {
    json!({
        "id": item.id,
        "surface": item.surface,
        "name": item.name,
        "server": item.place.endpoint.server,
        "path": item.place.endpoint.path,
        "address": item.place.endpoint.address,
        "agent": item.place.endpoint.agent,
        "revision": item.place.revision,
        "principal": item.place.principal,
        "state": item.standing.state,
        "classes": item.standing.classes,
        "unsure": item.standing.unsure,
        "since": item.since,
        "renamed_from": item.renamed_from,
    })
}

fn review(found: &Review) -> Value {
    let mut shown = summary(&found.summary);
    let surface = found.summary.surface;
    let texts = found.trusted.as_ref().map(|trusted| (trusted.text.as_deref(), found.seen.text.as_deref()));
    if let Some((Some(trusted), Some(seen))) = texts {
        shown["changes"] = json!(changes(surface, trusted, seen));
        shown["patch"] = json!(patch(trusted, seen));
    }
    shown["seen"] = kept(&found.seen);
    shown["trusted"] = found.trusted.as_ref().map(kept).into();
    shown["history"] = json!(found.history);
    shown
}

fn kept(definition: &Kept) -> Value {
    json!({
        "fingerprint": definition.fingerprint,
        "text": definition.text,
        "bytes": definition.bytes,
        "warnings": definition.smells,
    })
}
