//! A pod as far as interlock asks for it, and which pods are agents.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use globset::{Glob, GlobMatcher};
use k8s_openapi::api::core::v1::Pod as ApiPod;
use serde::{Deserialize, Serialize};

use super::place::Uid;
use crate::config::PodSelector;

/// What the API server says of a pod. Records carry all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    /// That of the API object; the cgroup of a static pod has another one.
    pub uid: String,
    pub node: String,
    pub service_account: String,
    pub labels: Arc<BTreeMap<String, String>>,
    /// Those that are no longer than [`LONGEST`].
    pub annotations: BTreeMap<String, String>,
    /// By id, as far as the kubelet has told the API server.
    pub containers: BTreeMap<String, Container>,
}

/// One of a pod's containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    pub name: String,
    pub image: String,
}

/// Longest value of an annotation that is kept, in bytes: tools keep whole manifests in them.
const LONGEST: usize = 256;
/// Says, of the API's image of a static pod, what uid its cgroup has.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// There where the pod is such an image.
const MIRROR: &str = "kubernetes.io/config.mirror";

impl Pod {
    /// Reads an object of the API. `None` for one that no kubelet could have made a cgroup for.
    pub fn of(object: ApiPod) -> Option<(Uid, Pod)> {
        let meta = object.metadata;
        let annotations = meta.annotations.unwrap_or_default();
        let uid = meta.uid?;
        let mirrored = annotations.get(CONFIG_HASH).filter(|_| annotations.contains_key(MIRROR));
        let key = match mirrored {
            // Whoever makes a pod writes its annotations: they must not name the cgroup of another one of the API.
            Some(hash) => Uid::parse(hash).filter(Uid::is_static)?,
            None => Uid::parse(&uid)?,
        };
        let spec = object.spec.unwrap_or_default();
        let status = object.status.unwrap_or_default();
        let statuses =
            [status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses];
        let containers = statuses.into_iter().flatten().flatten().filter_map(|status| {
            // `containerd://<id>`.
            let id = status.container_id?.rsplit_once("//")?.1.to_owned();
            Some((id, Container { name: status.name, image: status.image }))
        });
        let pod = Pod {
            namespace: meta.namespace?,
            name: meta.name?,
            uid,
            node: spec.node_name.unwrap_or_default(),
            service_account: spec.service_account_name.unwrap_or_default(),
            labels: Arc::new(meta.labels.unwrap_or_default()),
            annotations: annotations.into_iter().filter(|(_, value)| value.len() <= LONGEST).collect(),
            containers: containers.collect(),
        };
        Some((key, pod))
    }

    /// A name made of this pattern's `{namespace}` and `{pod}`.
    pub fn name_by(&self, pattern: &str) -> String {
        pattern.replace("{namespace}", &self.namespace).replace("{pod}", &self.name)
    }
}

/// A compiled [`PodSelector`].
#[derive(Debug)]
pub struct Pods {
    namespaces: Vec<GlobMatcher>,
    labels: Vec<(String, GlobMatcher)>,
}

impl Pods {
    pub fn compile(selector: &PodSelector) -> Result<Pods> {
        let glob = |pattern: &String| {
            let glob = Glob::new(pattern).with_context(|| format!("agents: kubernetes: glob {pattern:?}"))?;
            Ok::<_, anyhow::Error>(glob.compile_matcher())
        };
        Ok(Pods {
            namespaces: selector.namespaces.iter().map(glob).collect::<Result<_>>()?,
            labels: selector
                .labels
                .iter()
                .map(|(key, value)| Ok((key.clone(), glob(value)?)))
                .collect::<Result<_>>()?,
        })
    }

    pub fn matches(&self, pod: &Pod) -> bool {
        let is_there =
            self.namespaces.is_empty() || self.namespaces.iter().any(|glob| glob.is_match(&pod.namespace));
        let has = |(key, glob): &(String, GlobMatcher)| {
            pod.labels.get(key).is_some_and(|value| glob.is_match(value))
        };
        is_there && self.labels.iter().all(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(uid: &str, annotations: &[(&str, &str)]) -> Option<String> {
        let mut object = ApiPod::default();
        object.metadata.uid = Some(uid.to_owned());
        object.metadata.namespace = Some("agents".to_owned());
        object.metadata.name = Some("coder".to_owned());
        let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        object.metadata.annotations = Some(annotations.collect());
        Pod::of(object).map(|(uid, _)| uid.as_str().to_owned())
    }

    #[test]
    fn a_pod_is_where_its_uid_says_and_a_static_one_where_its_hash_does() {
        const OWN: &str = "5a1d0c1e-0000-4000-8000-00000000000a";
        const HASH: &str = "d41d8cd98f00b204e9800998ecf8427e";
        assert_eq!(key(OWN, &[]).as_deref(), Some(OWN));
        assert_eq!(key(OWN, &[(CONFIG_HASH, HASH), (MIRROR, HASH)]).as_deref(), Some(HASH));
        assert_eq!(key(OWN, &[(CONFIG_HASH, HASH)]).as_deref(), Some(OWN), "an image says that it is one");
        let other = "5a1d0c1e-0000-4000-8000-00000000000b";
        assert_eq!(key(OWN, &[(CONFIG_HASH, other), (MIRROR, other)]), None, "nobody is another pod");
    }
}
