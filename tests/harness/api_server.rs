//! What a Kubernetes API server tells of pods: a list, and a watch of what changes. The tests in `kube/` have a real one;
//! here it goes away and comes back as a test says.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::sync::{broadcast, oneshot};

use crate::world::World;

/// The node whose pods are asked for.
pub const NODE: &str = "node-1";

/// An API server with the pods of one node.
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

struct Shared {
    pods: Mutex<Vec<Value>>,
    changes: broadcast::Sender<Bytes>,
}

impl ApiServer {
    /// Starts one in the host's network namespace, where the daemon is, and writes how to reach it to `kubeconfig`.
    pub fn start(world: &World) -> Self {
        let shared = Arc::new(Shared { pods: Mutex::default(), changes: broadcast::Sender::new(64) });
        let mut server = Self { address: SocketAddr::from(([127, 0, 0, 1], 0)), shared, running: None };
        server.resume();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", server.address)}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(world.path("kubeconfig"), config.to_string()).expect("write kubeconfig");
        server
    }

    /// Comes back where it was.
    pub fn resume(&mut self) {
        let listener = std::net::TcpListener::bind(self.address).expect("bind");
        listener.set_nonblocking(true).expect("set nonblocking");
        self.address = listener.local_addr().expect("an address");
        let routes = Router::new().route("/api/v1/pods", get(pods)).with_state(Arc::clone(&self.shared));
        let (end, ended) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("listen");
                tokio::select! {
                    served = axum::serve(listener, routes) => served.expect("serve"),
                    _ = ended => {}
                }
            });
        });
        self.running = Some((end, thread));
    }

    /// Goes away: its connections break, and nothing listens.
    pub fn go_away(&mut self) {
        if let Some((end, thread)) = self.running.take() {
            let _ = end.send(());
            thread.join().expect("the server ends");
        }
    }

    /// Makes a pod, or changes the one of this uid.
    pub fn set(&self, pod: &Value) {
        let mut pods = self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = &pod["metadata"]["uid"];
        let kind = match pods.iter_mut().find(|known| &known["metadata"]["uid"] == uid) {
            Some(known) => {
                *known = pod.clone();
                "MODIFIED"
            }
            None => {
                pods.push(pod.clone());
                "ADDED"
            }
        };
        self.tell(kind, pod);
    }

    /// Deletes a pod by force: the kubelet has not ended it.
    pub fn delete(&self, uid: &str) {
        let mut pods = self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let at = pods.iter().position(|known| known["metadata"]["uid"] == uid).expect("a pod of this uid");
        let pod = pods.remove(at);
        self.tell("DELETED", &pod);
    }

    fn tell(&self, kind: &str, pod: &Value) {
        // Nobody may be listening.
        let _ = self.shared.changes.send(Bytes::from(format!("{}\n", json!({"type": kind, "object": pod}))));
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.go_away();
    }
}

/// A pod of the node, as the API has it.
pub fn pod(uid: &str, namespace: &str, name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"uid": uid, "namespace": namespace, "name": name, "labels": labels, "resourceVersion": "1"},
        "spec": {"nodeName": NODE, "serviceAccountName": "robot", "containers": [{"name": "main"}]},
        "status": {},
    })
}

async fn pods(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    assert!(
        query.contains(&format!("spec.nodeName%3D{NODE}")),
        "only this node's pods are asked for: {query}"
    );
    if !query.contains("watch=true") {
        let pods = shared.pods.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let list = json!({
            "apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": pods,
        });
        return axum::Json(list).into_response();
    }
    let changes = shared.changes.subscribe();
    // What came between the list and the watch is told again.
    let before: Vec<Bytes> = {
        let pods = shared.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.iter()
            .map(|pod| Bytes::from(format!("{}\n", json!({"type": "MODIFIED", "object": pod}))))
            .collect()
    };
    let now = futures_util::stream::iter(before.into_iter().map(Ok::<_, Infallible>));
    let later = futures_util::stream::unfold(changes, |mut changes| async move {
        changes.recv().await.ok().map(|change| (Ok(change), changes))
    });
    Body::from_stream(futures_util::StreamExt::chain(now, later)).into_response()
}
