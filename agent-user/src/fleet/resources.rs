//! The custom resources, group `interlock.dev`. `interlock config schema --crds` prints their definitions.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt as _};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::baseline::{MAX_ITEMS, MAX_SERVERS, MAX_TEXT};
use crate::decide::policy::{Action, Bias, Mode, Phase};
use crate::decide::stop::{Level, Terms};
use crate::fingerprint::{MAX_NAME, Surface};

/// A stop for every node. It cannot be changed but to go further; deleting it is its release.
#[derive(Clone, Debug, CustomResource, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[kube(
    group = "interlock.dev",
    version = "v1alpha1",
    kind = "AgentStop",
    status = "AgentStopStatus",
    shortname = "astop",
    printcolumn = r#"{"name": "Level", "type": "string", "jsonPath": ".spec.level"}"#,
    printcolumn = r#"{"name": "In force", "type": "string", "jsonPath": ".status.inForce"}"#,
    printcolumn = r#"{"name": "Agents", "type": "integer", "jsonPath": ".status.agents"}"#,
    printcolumn = r#"{"name": "In flight", "type": "integer", "jsonPath": ".status.calls"}"#,
    printcolumn = r#"{"name": "Open fates", "type": "integer", "jsonPath": ".status.open"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".spec.reason"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
pub struct AgentStopSpec {
    /// Whom it is for: terms, ANDed, each a glob; or `all: true`.
    pub scope: Terms,
    /// How far it goes. Levels beyond `refuse` act on whole agents.
    #[serde(default)]
    pub level: Level,
    /// Why; agents are shown it.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
}

/// What the nodes have answered, summed up by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentStopStatus {
    /// Nodes where it is in force, of those that run interlock, such as `3/3`.
    pub in_force: String,
    pub nodes_in_force: usize,
    /// Nodes that run interlock, by its DaemonSet.
    pub nodes: usize,
    /// Agents that it is for and that are held now.
    pub agents: usize,
    /// Calls that were in flight.
    pub calls: usize,
    /// Of these, how many have a fate that is not known.
    pub open: usize,
    /// Calls by what became of them.
    pub fates: BTreeMap<String, usize>,
    /// When the last node had it in force, if every one has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub in_force_at: Option<Timestamp>,
    /// What fell short, each with its node; the first [`PROBLEMS`].
    pub problems: Vec<String>,
}

/// Longest list of problems in a status: it is told to every node.
pub const PROBLEMS: usize = 20;

/// One node's answer to an `AgentStop`.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "interlock.dev",
    version = "v1alpha1",
    kind = "AgentStopReport",
    shortname = "astopreport",
    printcolumn = r#"{"name": "Stop", "type": "string", "jsonPath": ".spec.stop"}"#,
    printcolumn = r#"{"name": "Node", "type": "string", "jsonPath": ".spec.node"}"#,
    printcolumn = r#"{"name": "In force", "type": "boolean", "jsonPath": ".spec.inForce"}"#,
    printcolumn = r#"{"name": "Agents", "type": "integer", "jsonPath": ".spec.agents"}"#,
    printcolumn = r#"{"name": "In flight", "type": "integer", "jsonPath": ".spec.calls"}"#,
    printcolumn = r#"{"name": "Open fates", "type": "integer", "jsonPath": ".spec.open"}"#
)]
pub struct AgentStopReportSpec {
    /// Name of the `AgentStop`, and its uid: one of the same name that is made later has another.
    pub stop: String,
    pub stop_uid: String,
    pub node: String,
    pub level: Level,
    /// No new call in scope can reach a server from this node.
    pub in_force: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub in_force_at: Option<Timestamp>,
    pub agents: usize,
    pub connections: usize,
    pub calls: usize,
    pub open: usize,
    pub fates: BTreeMap<String, usize>,
    pub problems: Vec<String>,
}

/// Rules for the agents in pods of one namespace, whoever else's rules hold there as well.
#[derive(Clone, Debug, CustomResource, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[kube(
    group = "interlock.dev",
    version = "v1alpha1",
    kind = "AgentPolicy",
    plural = "agentpolicies",
    namespaced,
    status = "PolicyStatus",
    shortname = "apol",
    printcolumn = r#"{"name": "Rules", "type": "integer", "jsonPath": ".status.rules"}"#,
    printcolumn = r#"{"name": "Accepted", "type": "boolean", "jsonPath": ".status.accepted"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.message"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
pub struct AgentPolicySpec {
    /// Rules, as in a rules file. They are for this namespace alone, and so have no `match.namespace`.
    #[schemars(schema_with = "rules")]
    pub rules: Vec<Value>,
}

/// Rules for all agents of the cluster.
#[derive(Clone, Debug, CustomResource, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[kube(
    group = "interlock.dev",
    version = "v1alpha1",
    kind = "ClusterAgentPolicy",
    plural = "clusteragentpolicies",
    status = "PolicyStatus",
    shortname = "capol",
    printcolumn = r#"{"name": "Rules", "type": "integer", "jsonPath": ".status.rules"}"#,
    printcolumn = r#"{"name": "Accepted", "type": "boolean", "jsonPath": ".status.accepted"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.message"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
pub struct ClusterAgentPolicySpec {
    /// Rules, as in a rules file.
    #[schemars(schema_with = "rules")]
    pub rules: Vec<Value>,
}

/// What nodes make of a policy, as the controller finds out with the same code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// The generation of the object that this is about.
    pub observed_generation: i64,
    /// Every node takes it. Where it does not, what it took last of this object stays in force.
    pub accepted: bool,
    /// How many rules it has.
    pub rules: usize,
    /// Why it is not accepted, and the remedy.
    pub message: String,
    /// The version of the controller: another one may know other rules.
    pub version: String,
}

/// What is trusted of the tools, prompts and instructions of some servers. For servers with a name or address that is in any
/// of these nothing else is.
#[derive(Clone, Debug, CustomResource, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[kube(
    group = "interlock.dev",
    version = "v1alpha1",
    kind = "ToolBaseline",
    status = "ToolBaselineStatus",
    shortname = "tbase",
    printcolumn = r#"{"name": "Servers", "type": "integer", "jsonPath": ".status.servers"}"#,
    printcolumn = r#"{"name": "Entries", "type": "integer", "jsonPath": ".status.entries"}"#,
    printcolumn = r#"{"name": "Accepted", "type": "boolean", "jsonPath": ".status.accepted"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.message"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
pub struct ToolBaselineSpec {
    /// As `interlock tools export --as-object NAME` prints them.
    #[schemars(schema_with = "servers")]
    pub servers: Vec<Value>,
}

/// What nodes make of a baseline, as the controller finds out with the same code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolBaselineStatus {
    /// The generation of the object that this is about.
    pub observed_generation: i64,
    /// Every node takes it. Where it does not, what it took last of this object stays in force.
    pub accepted: bool,
    /// How many servers it is about, and how many tools and the like it has.
    pub servers: usize,
    pub entries: usize,
    /// Why it is not accepted, and the remedy.
    pub message: String,
    /// The version of the controller: another one may know other definitions.
    pub version: String,
}

/// Most rules of one policy.
pub const MAX_RULES: usize = 1000;

/// The shape of rules as far as an API server can tell it. It keeps what it does not know, so that a misspelt field is
/// refused by the nodes and not lost on the way to them.
fn rules(generator: &mut SchemaGenerator) -> Schema {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let text = json!({"type": "string"});
    json_schema!({
        "type": "array",
        "maxItems": MAX_RULES,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["id"],
        "items": {
            "type": "object",
            "required": ["id", "action"],
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {
                "id": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,63}$"},
                "action": generator.subschema_for::<Action>(),
                "phase": generator.subschema_for::<Phase>(),
                "mode": generator.subschema_for::<Mode>(),
                "match": any, "redact": any, "limit": any, "drift": any, "after": any,
                "when": text, "on_error": generator.subschema_for::<Bias>(),
                "level": generator.subschema_for::<Level>(), "timeout": text, "reason": text,
            },
        },
    })
}

/// The shape of what is trusted. It keeps what it does not know, as [`rules`] does: an `address` that is misspelt and lost on the
/// way would trust more. Lists are whole: what is made of two by merging was reviewed by nobody.
fn servers(generator: &mut SchemaGenerator) -> Schema {
    let text = |longest: usize| json!({"type": "string", "minLength": 1, "maxLength": longest});
    let digest = json!({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"});
    let hint = json!({"type": "boolean"});
    let item = json!({
        "type": "object",
        "required": ["surface"],
        "anyOf": [{"required": ["text"]}, {"required": ["digests"]}],
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "surface": generator.subschema_for::<Surface>(),
            "name": {"type": "string", "maxLength": MAX_NAME},
            "revision": text(64),
            "principal": text(1024),
            "text": text(MAX_TEXT),
            "digests": {
                "type": "object",
                "required": ["definition", "core", "hints", "annotations", "display", "meta", "ui"],
                "properties": {
                    "definition": digest, "core": digest, "annotations": digest, "display": digest, "meta": digest,
                    "ui": digest,
                    "hints": {
                        "type": "object",
                        "required": ["read_only", "destructive", "idempotent", "open_world"],
                        "properties": {"read_only": hint, "destructive": hint, "idempotent": hint, "open_world": hint},
                    },
                },
            },
        },
    });
    json_schema!({
        "type": "array",
        "maxItems": MAX_SERVERS,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["server"],
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {
                "server": {"type": "array", "minItems": 1, "maxItems": 100, "items": text(1024)},
                "path": {"type": "string", "maxLength": 1024},
                "address": {
                    "type": "string",
                    "pattern": r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}$",
                },
                "agent": text(1024),
                "items": {"type": "array", "maxItems": MAX_ITEMS, "x-kubernetes-list-type": "atomic", "items": item},
            },
        },
    })
}

/// The definitions, as the API server wants them.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![
        AgentStop::crd(),
        AgentStopReport::crd(),
        AgentPolicy::crd(),
        ClusterAgentPolicy::crd(),
        ToolBaseline::crd(),
    ]
}
