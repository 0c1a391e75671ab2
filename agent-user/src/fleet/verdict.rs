//! What becomes of a policy on the nodes, told in its status. The controller finds out with the code that they run, so that
//! nobody waits for thousands of answers.

use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::Store;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tracing::warn;

use super::follow::Ruled;
use super::policies::compile;
use super::resources::PolicyStatus;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Writes the statuses that are not about what their objects say now.
pub(super) async fn tell<K: Ruled>(client: &Client, objects: &Store<K>) {
    for object in objects.state() {
        let generation = object.meta().generation.unwrap_or_default();
        let is_told =
            |status: &PolicyStatus| status.observed_generation == generation && status.version == VERSION;
        if object.status().is_some_and(is_told) {
            continue;
        }
        let status = status(&*object, generation);
        let patch = Patch::Merge(json!({"status": status}));
        let api = object.api(client.clone());
        if let Err(error) = api.patch_status(&object.name_any(), &PatchParams::default(), &patch).await {
            warn!(policy = %object.ruled_name(), %error, "status not written yet");
        }
    }
}

fn status<K: Ruled>(object: &K, generation: i64) -> PolicyStatus {
    let compiled = compile(&object.ruled_name(), object.rules());
    PolicyStatus {
        observed_generation: generation,
        accepted: compiled.is_ok(),
        rules: object.rules().len(),
        message: compiled.err().unwrap_or_default(),
        version: VERSION.to_owned(),
    }
}
