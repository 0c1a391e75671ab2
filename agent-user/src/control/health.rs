//! `/metrics`, `/healthz` and `/readyz`: what monitoring asks, on a TCP port of its own that takes no orders.

use std::sync::Arc;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::Control;
use crate::kernel::LinkHealth;

/// The routes.
pub(super) fn router(control: Arc<Control>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(control)
}

/// Every kernel program is where it was put, as the kernel says.
pub(super) fn is_attached(links: &[LinkHealth]) -> bool {
    !links.is_empty() && links.iter().all(|link| link.attached)
}

async fn ready(Shared(control): Shared<Arc<Control>>) -> Response {
    let links = control.parts.kernel.health();
    match links.iter().find(|link| !link.attached) {
        None if !links.is_empty() => "ready\n".into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "nothing is attached\n".to_owned()).into_response(),
        Some(link) => {
            let text = format!("{} on {} is not attached\n", link.name, link.cgroup.display());
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

async fn metrics(Shared(control): Shared<Arc<Control>>) -> Response {
    let metrics = &control.parts.metrics;
    metrics.kernel_attached.set(is_attached(&control.parts.kernel.health()).into());
    metrics.held_bytes.set(i64::try_from(control.parts.memory.used()).unwrap_or(i64::MAX));
    if let Ok(counters) = control.parts.kernel.counters() {
        metrics.kernel_events_lost.set(i64::try_from(counters.events_lost).unwrap_or(i64::MAX));
    }
    match metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
