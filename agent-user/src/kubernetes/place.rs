//! Where the kubelet puts pods in the cgroup tree, for both of its cgroup drivers and whatever its `--cgroup-root` is
//! (kubelet `pkg/kubelet/cm`, `cgroup_manager_linux.go`; the runtimes' names are those of containerd, CRI-O and cri-dockerd).
//!
//! `cgroupfs`: `/kubepods/burstable/pod<uid>/<container>`. `systemd`, where each name repeats its parents':
//! `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice/cri-containerd-<container>.scope`. Pods of
//! class Guaranteed lie one level higher in both.

/// What a cgroup is to the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Pods may lie below it, at some depth.
    Above,
    /// The cgroup with all pods in it, or with all of one class.
    Pods,
    /// A pod's own.
    Pod(Uid),
}

/// The uid of a pod as its cgroup has it: that of the API object or, for a static pod, the hash of its manifest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Uid(String);

impl Uid {
    /// `None` for what is none.
    pub fn parse(text: &str) -> Option<Uid> {
        let uid = text.replace('_', "-").to_ascii_lowercase();
        let is_uuid = uid.len() == 36
            && uid.split('-').map(str::len).eq([8, 4, 4, 4, 12])
            && uid.split('-').all(is_hex);
        (is_uuid || is_hash(&uid)).then_some(Uid(uid))
    }

    /// The kubelet made the pod from a file on the node, not from the API.
    pub fn is_static(&self) -> bool {
        is_hash(&self.0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// MD5 of a static pod's manifest (annotation `kubernetes.io/config.hash`).
fn is_hash(text: &str) -> bool {
    text.len() == 32 && is_hex(text)
}

/// Where the kubelet keeps its pods.
#[derive(Clone, Debug)]
pub struct Kubelet {
    /// Parts of `--cgroup-root`, below the cgroup v2 root.
    root: Vec<String>,
}

/// The classes that have a cgroup.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];
const PODS: &str = "kubepods";
const SLICE: &str = ".slice";

impl Kubelet {
    /// The kubelet with this `--cgroup-root`.
    pub fn new(cgroup_root: &str) -> Kubelet {
        let parts = cgroup_root.split('/').filter(|part| !part.is_empty());
        Kubelet { root: parts.map(str::to_owned).collect() }
    }

    /// What the cgroup at this path below the cgroup v2 root is; `None` where no pods are.
    pub fn place(&self, parts: &[String]) -> Option<Place> {
        self.by_name(parts).or_else(|| self.by_slice(parts))
    }

    /// With the driver `cgroupfs`.
    fn by_name(&self, parts: &[String]) -> Option<Place> {
        if let Some(rest) = parts.strip_prefix(&self.root[..]) {
            return match rest {
                [] => Some(Place::Above),
                [pods] if pods == PODS => Some(Place::Pods),
                [pods, class] if pods == PODS && CLASSES.contains(&&**class) => Some(Place::Pods),
                [pods, class, pod] if pods == PODS && CLASSES.contains(&&**class) => of_name(pod),
                [pods, pod] if pods == PODS => of_name(pod),
                _ => None,
            };
        }
        self.root.starts_with(parts).then_some(Place::Above)
    }

    /// With the driver `systemd`: the root's parts make one name, joined by dashes, and so does every part below. A dash
    /// within a part is an underscore there.
    fn by_slice(&self, parts: &[String]) -> Option<Place> {
        let mut name = String::new();
        let mut left = parts.iter();
        for part in &self.root {
            extend(&mut name, &part.replace('-', "_"));
            match left.next() {
                None => return Some(Place::Above),
                Some(found) if found.strip_suffix(SLICE) == Some(&name) => {}
                Some(_) => return None,
            }
        }
        extend(&mut name, PODS);
        let Some(pods) = left.next() else { return Some(Place::Above) };
        if pods.strip_suffix(SLICE) != Some(&name) {
            return None;
        }
        match left.as_slice() {
            [] => Some(Place::Pods),
            [one] => {
                let own = one.strip_suffix(SLICE)?.strip_prefix(&name)?.strip_prefix('-')?;
                if CLASSES.contains(&own) { Some(Place::Pods) } else { of_name(own) }
            }
            [class, pod] => {
                let class = class.strip_suffix(SLICE)?;
                let own = class.strip_prefix(&name)?.strip_prefix('-')?;
                let pod = pod.strip_suffix(SLICE)?.strip_prefix(class)?.strip_prefix('-')?;
                CLASSES.contains(&own).then(|| of_name(pod))?
            }
            _ => None,
        }
    }
}

fn extend(name: &mut String, part: &str) {
    if !name.is_empty() {
        name.push('-');
    }
    name.push_str(part);
}

fn of_name(name: &str) -> Option<Place> {
    Uid::parse(name.strip_prefix("pod")?).map(Place::Pod)
}

/// The id of the container whose cgroup this is or lies in, from the part of the path below the pod's.
pub fn container_in(below_pod: &str) -> Option<&str> {
    let parts = below_pod.split('/').filter(|part| !part.is_empty());
    parts.into_iter().find_map(|part| {
        let name = part.strip_suffix(".scope").unwrap_or(part);
        // `cri-containerd-<id>`, `crio-<id>`, `docker-<id>`, or the id alone.
        let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
        (id.len() == 64 && is_hex(id)).then_some(id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "5a1d0c1e-0000-4000-8000-00000000000a";
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[track_caller]
    fn check(root: &str, path: &str, expect: Option<Place>) {
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        assert_eq!(Kubelet::new(root).place(&parts), expect, "{path} below {root}");
    }

    fn pod(uid: &str) -> Option<Place> {
        Some(Place::Pod(Uid(uid.to_owned())))
    }

    #[test]
    fn pods_are_found_with_both_drivers_in_every_class() {
        for class in ["", "/burstable", "/besteffort"] {
            check("/", &format!("/kubepods{class}"), Some(Place::Pods));
            check("/", &format!("/kubepods{class}/pod{UID}"), pod(UID));
            check("/", &format!("/kubepods{class}/pod{UID}/{ID}"), None);
        }
        let uid = UID.replace('-', "_");
        check("/", "/kubepods.slice", Some(Place::Pods));
        check("/", &format!("/kubepods.slice/kubepods-pod{uid}.slice"), pod(UID));
        for class in CLASSES {
            let slice = format!("/kubepods.slice/kubepods-{class}.slice");
            check("/", &slice, Some(Place::Pods));
            check("/", &format!("{slice}/kubepods-{class}-pod{uid}.slice"), pod(UID));
            check("/", &format!("{slice}/kubepods-{class}-pod{uid}.slice/cri-containerd-{ID}.scope"), None);
        }
    }

    #[test]
    fn pods_are_found_below_the_kubelets_root() {
        for path in ["", "/kubelet"] {
            check("/kubelet", path, Some(Place::Above));
        }
        check("/kubelet", "/kubelet.slice", Some(Place::Above));
        check("/kubelet", &format!("/kubelet/kubepods/pod{UID}"), pod(UID));
        // As kind has it.
        let slice = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice";
        let uid = UID.replace('-', "_");
        check("/kubelet", slice, Some(Place::Pods));
        check("/kubelet", &format!("{slice}/kubelet-kubepods-burstable-pod{uid}.slice"), pod(UID));
        check("/a/b", "/a", Some(Place::Above));
        check("/a/b", &format!("/a/b/kubepods/besteffort/pod{UID}"), pod(UID));
        check(
            "/a/b",
            &format!("/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod{uid}.slice"),
            pod(UID),
        );
        // A dash says to systemd what is above: the kubelet makes another letter of those in names.
        check("/a-b", "/a_b.slice", Some(Place::Above));
        check("/a-b", &format!("/a_b.slice/a_b-kubepods.slice/a_b-kubepods-pod{uid}.slice"), pod(UID));
        check("/a-b", &format!("/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod{uid}.slice"), None);
        check("/a-b", &format!("/a-b/kubepods/pod{UID}"), pod(UID));
    }

    #[test]
    fn static_pods_have_a_hash() {
        let hash = "d41d8cd98f00b204e9800998ecf8427e";
        check("/", &format!("/kubepods/burstable/pod{hash}"), pod(hash));
        check(
            "/",
            &format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{hash}.slice"),
            pod(hash),
        );
        assert!(Uid::parse(hash).unwrap().is_static() && !Uid::parse(UID).unwrap().is_static());
    }

    #[test]
    fn what_only_looks_like_a_pod_is_none() {
        check("/", "/system.slice", None);
        check("/", &format!("/system.slice/pod{UID}"), None);
        check("/", &format!("/kubepods/other/pod{UID}"), None);
        check("/", &format!("/kubepods/pod{UID}x"), None);
        check("/", "/kubepods/podx", None);
        check(
            "/",
            &format!("/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-pod{UID}.slice"),
            None,
        );
        check("/", &format!("/kubepods.slice/kubepods-other.slice/kubepods-other-pod{UID}.slice"), None);
        for text in ["", "pod", "5a1d0c1e-0000-4000-8000", &"g".repeat(32), &format!("{UID}-{UID}")] {
            assert_eq!(Uid::parse(text), None, "{text}");
        }
    }

    #[test]
    fn containers_are_found_under_every_runtimes_name() {
        for name in ["", "cri-containerd-", "crio-", "docker-"] {
            assert_eq!(container_in(&format!("/{name}{ID}.scope")), Some(ID), "{name}");
        }
        assert_eq!(container_in(&format!("/{ID}")), Some(ID));
        // crun and systemd in the container make cgroups of their own below.
        assert_eq!(container_in(&format!("/crio-{ID}.scope/container/init.scope")), Some(ID));
        for none in ["", "/", "/init.scope", "/crio-conmon-0123.scope"] {
            assert_eq!(container_in(none), None, "{none}");
        }
    }
}
