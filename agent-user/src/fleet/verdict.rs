//! What becomes of an object on the nodes, told in its status. The controller finds out with the code that they run, so that
//! nobody waits for thousands of answers.

use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::Store;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tracing::warn;

use super::follow::Said;
use super::held::Content as _;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What nodes make of an object.
pub(super) struct Verdict {
    /// Of the object.
    pub(super) generation: i64,
    /// Why they do not take it, and the remedy.
    pub(super) fault: Option<String>,
    /// Of whoever has found out.
    pub(super) version: &'static str,
}

/// Writes the statuses that are not about what their objects say now.
pub(super) async fn tell<K: Said>(client: &Client, objects: &Store<K>) {
    for object in objects.state() {
        let generation = object.meta().generation.unwrap_or_default();
        if object.told() == Some((generation, VERSION)) {
            continue;
        }
        let name = object.held_name();
        let fault = K::Content::compile(&name, object.written()).err();
        let status = object.status(Verdict { generation, fault, version: VERSION });
        let patch = Patch::Merge(json!({"status": status}));
        let api = object.api(client.clone());
        if let Err(error) = api.patch_status(&object.name_any(), &PatchParams::default(), &patch).await {
            warn!(object = K::Content::id(&name), %error, "status not written yet");
        }
    }
}
