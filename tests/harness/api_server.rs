//! As much of a Kubernetes API server as interlock asks of one: lists, watches, and changes of single objects, without
//! schemas or rights. The tests in `kube/` have a real one; here it goes away and comes back as a test says.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::{broadcast, oneshot};

use crate::world::World;

/// The node whose pods are asked for.
pub const NODE: &str = "node-1";
/// Collections of which single objects are asked for.
const PODS: &str = "/api/v1/pods";
const STOPS: &str = "/apis/interlock.dev/v1alpha1/agentstops";
const REPORTS: &str = "/apis/interlock.dev/v1alpha1/agentstopreports";
const POLICIES: &str = "/apis/interlock.dev/v1alpha1/agentpolicies";
const CLUSTER_POLICIES: &str = "/apis/interlock.dev/v1alpha1/clusteragentpolicies";
const BASELINES: &str = "/apis/interlock.dev/v1alpha1/toolbaselines";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/interlock/daemonsets";

/// An API server with the pods of one node.
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

struct Shared {
    objects: Mutex<Objects>,
    /// The collection of what has changed, and the line that tells of it.
    changes: broadcast::Sender<(String, Bytes)>,
}

/// By collection and name.
#[derive(Default)]
struct Objects {
    by_path: BTreeMap<String, BTreeMap<String, Value>>,
    version: u64,
}

impl ApiServer {
    /// Starts one in the host's network namespace, where the daemon is, and writes how to reach it to `kubeconfig`.
    pub fn start(world: &World) -> Self {
        let shared = Arc::new(Shared { objects: Mutex::default(), changes: broadcast::Sender::new(64) });
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
        let routes = Router::new().fallback(answer).with_state(Arc::clone(&self.shared));
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

    /// Makes a pod, or changes the one of this name.
    pub fn set(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        self.shared.put(PODS, name, pod.clone());
    }

    /// Deletes a pod by force: the kubelet has not ended it.
    pub fn delete(&self, name: &str) {
        self.shared.remove(PODS, name).expect("a pod of this name");
    }

    /// Makes an `AgentPolicy` of a namespace, or a `ClusterAgentPolicy`, or changes the one of this name.
    pub fn set_policy(&self, namespace: Option<&str>, name: &str, rules: &Value) {
        let (path, kind) = match namespace {
            Some(_) => (POLICIES, "AgentPolicy"),
            None => (CLUSTER_POLICIES, "ClusterAgentPolicy"),
        };
        let policy = json!({
            "apiVersion": "interlock.dev/v1alpha1", "kind": kind, "metadata": {"namespace": namespace},
            "spec": {"rules": rules},
        });
        self.shared.put(path, name, policy);
    }

    /// The status of each policy, by name.
    pub fn policies(&self) -> BTreeMap<String, Value> {
        statuses([POLICIES, CLUSTER_POLICIES].into_iter().flat_map(|path| self.shared.list(path)))
    }

    /// Deletes the policy of this name.
    pub fn delete_policy(&self, name: &str) {
        let known = [POLICIES, CLUSTER_POLICIES].into_iter().find_map(|path| self.shared.remove(path, name));
        known.expect("a policy of this name");
    }

    /// Makes a `ToolBaseline`, or changes the one of this name.
    pub fn set_baseline(&self, name: &str, servers: &Value) {
        self.apply_baseline(name, &json!({
            "apiVersion": "interlock.dev/v1alpha1", "kind": "ToolBaseline", "metadata": {}, "spec": {"servers": servers},
        }));
    }

    /// The same, as `kubectl apply` does with a whole object.
    pub fn apply_baseline(&self, name: &str, object: &Value) {
        self.shared.put(BASELINES, name, object.clone());
    }

    /// The status of each baseline, by name.
    pub fn baselines(&self) -> BTreeMap<String, Value> {
        statuses(self.shared.list(BASELINES))
    }

    /// Deletes the baseline of this name.
    pub fn delete_baseline(&self, name: &str) {
        self.shared.remove(BASELINES, name).expect("a baseline of this name");
    }

    /// Says how many nodes run interlock.
    pub fn set_nodes(&self, nodes: usize) {
        let set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "interlock", "namespace": "interlock"},
            "status": {"desiredNumberScheduled": nodes, "currentNumberScheduled": nodes, "numberMisscheduled": 0,
                       "numberReady": nodes},
        });
        self.shared.put(DAEMON_SETS, "interlock", set);
    }

    /// Every `AgentStop`.
    pub fn stops(&self) -> Vec<Value> {
        self.shared.list(STOPS)
    }

    /// As `kubectl edit` does.
    pub fn edit_stop(&self, name: &str, spec: Value) {
        let known = self.stops().into_iter().find(|stop| stop["metadata"]["name"] == name);
        let mut stop = known.expect("an AgentStop of this name");
        stop["spec"] = spec;
        self.shared.put(STOPS, name, stop);
    }

    /// Every node's answer.
    pub fn reports(&self) -> Vec<Value> {
        self.shared.list(REPORTS)
    }

    /// As `kubectl delete agentstop` does.
    pub fn delete_stop(&self, name: &str) {
        self.shared.remove(STOPS, name).expect("an AgentStop of this name");
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.go_away();
    }
}

fn statuses(objects: impl IntoIterator<Item = Value>) -> BTreeMap<String, Value> {
    let name = |object: &Value| object["metadata"]["name"].as_str().expect("a name").to_owned();
    objects.into_iter().map(|mut object| (name(&object), object["status"].take())).collect()
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

impl Shared {
    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self, path: &str) -> Vec<Value> {
        self.objects()
            .by_path
            .get(path)
            .map(|objects| objects.values().cloned().collect())
            .unwrap_or_default()
    }

    fn put(&self, path: &str, name: &str, mut object: Value) -> Value {
        let mut objects = self.objects();
        objects.version += 1;
        let version = objects.version;
        let meta = &mut object["metadata"];
        meta["name"] = json!(name);
        meta["resourceVersion"] = json!(version.to_string());
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("00000000-0000-4000-8000-{version:012}"));
        }
        let known = objects.by_path.get(path).and_then(|objects| objects.get(name));
        let generation = known.map_or(0, |known| known["metadata"]["generation"].as_u64().unwrap_or(0));
        let is_same = known.is_some_and(|known| known["spec"] == object["spec"]);
        object["metadata"]["generation"] = json!(generation + u64::from(!is_same));
        let before =
            objects.by_path.entry(path.to_owned()).or_default().insert(name.to_owned(), object.clone());
        self.tell(path, if before.is_some() { "MODIFIED" } else { "ADDED" }, &object);
        object
    }

    fn remove(&self, path: &str, name: &str) -> Option<Value> {
        let object = self.objects().by_path.get_mut(path)?.remove(name)?;
        self.tell(path, "DELETED", &object);
        Some(object)
    }

    fn tell(&self, path: &str, kind: &str, object: &Value) {
        let line = Bytes::from(format!("{}\n", json!({"type": kind, "object": object})));
        // Nobody may be listening.
        let _ = self.changes.send((path.to_owned(), line));
    }

    /// What is there, told again, and what changes from now on.
    fn watch(self: &Arc<Self>, path: String) -> Response {
        let changes = self.changes.subscribe();
        let again =
            |object: &Value| Bytes::from(format!("{}\n", json!({"type": "MODIFIED", "object": object})));
        let now: Vec<_> = self.list(&path).iter().map(|object| Ok::<_, Infallible>(again(object))).collect();
        let later = stream::unfold((changes, path), |(mut changes, path)| async move {
            loop {
                let (of, line) = changes.recv().await.ok()?;
                if of == path {
                    return Some((Ok(line), (changes, path)));
                }
            }
        });
        Body::from_stream(stream::iter(now).chain(later)).into_response()
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Response {
    let (path, query) = (uri.path(), query.unwrap_or_default());
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (path, is_status) = path.strip_suffix("/status").map_or((path, false), |path| (path, true));
    // A namespaced object is found by its name alone.
    let path =
        match path.split_once("/namespaces/").and_then(|(api, rest)| Some((api, rest.split_once('/')?.1))) {
            Some((api, rest)) if rest.starts_with("agentpolicies/") => format!("{api}/{rest}"),
            _ => path.to_owned(),
        };
    let path = path.as_str();
    let is_collection = [PODS, STOPS, REPORTS, POLICIES, CLUSTER_POLICIES, BASELINES].contains(&path);
    if is_collection {
        let asks_for_node = query.contains(&format!("spec.nodeName%3D{NODE}"));
        assert!(path != PODS || asks_for_node, "only this node's pods are asked for: {query}");
        return match method {
            Method::GET if query.contains("watch=true") => shared.watch(path.to_owned()),
            Method::GET => axum::Json(json!({
                "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"},
                "items": shared.list(path),
            }))
            .into_response(),
            _ => {
                let name = body["metadata"]["name"].as_str().expect("a name").to_owned();
                axum::Json(shared.put(path, &name, body)).into_response()
            }
        };
    }
    let (path, name) = path.rsplit_once('/').expect("a path");
    let known = shared.objects().by_path.get(path).and_then(|objects| objects.get(name)).cloned();
    match (method, known) {
        (Method::GET, Some(object)) => axum::Json(object).into_response(),
        (Method::PATCH, Some(mut object)) if is_status => {
            object["status"] = body["status"].clone();
            axum::Json(shared.put(path, name, object)).into_response()
        }
        // Server-side apply makes what is not there.
        (Method::PATCH, known) if path == REPORTS => {
            let mut object = body;
            if let Some(known) = known {
                object["metadata"]["uid"] = known["metadata"]["uid"].clone();
            }
            axum::Json(shared.put(path, name, object)).into_response()
        }
        (_, _) => {
            let status = json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
                "message": format!("{path}/{name}"),
            });
            (StatusCode::NOT_FOUND, axum::Json(status)).into_response()
        }
    }
}
