//! What is trusted as a document that people review, a file or an object of the API server: written.

use std::net::SocketAddr;
use std::sync::Arc;

use kube::Resource as _;
use serde::{Deserialize, Serialize};
use serde_saphyr::LitStr;

use super::document::{VERSION, fingerprint_of};
use super::known::Known;
use super::list::{self, Block, List};
use super::order::Filter;
use super::place::Place;
use crate::decide::policy::Globs;
use crate::fingerprint::{Fingerprint, Surface};
use crate::fleet::resources::ToolBaseline;

/// Most bytes of an object, as JSON. An API server takes 1.5 MiB of it with all that it adds (etcd,
/// `--max-request-bytes`).
const MAX_OBJECT: usize = 1 << 20;

/// What to export.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wanted {
    #[serde(flatten)]
    pub filter: Filter,
    /// What is shown now, in place of what is trusted.
    pub shown: bool,
    /// As a `ToolBaseline` of this name, in place of a file.
    pub as_object: Option<String>,
}

/// Something that is to be exported.
#[derive(Debug)]
pub(super) struct Trustee {
    place: Arc<Place>,
    surface: Surface,
    name: Arc<str>,
    pub(super) fingerprint: Fingerprint,
    pub(super) text: Option<Arc<str>>,
}

#[derive(Serialize)]
struct File<'a> {
    version: u32,
    servers: Vec<Server<'a>>,
}

/// As `kubectl apply` takes it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: Metadata<'a>,
    spec: Spec<'a>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct Spec<'a> {
    servers: Vec<Server<'a>>,
}

#[derive(Serialize)]
struct Server<'a> {
    server: Globs,
    #[serde(skip_serializing_if = "str::is_empty")]
    path: &'a str,
    address: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'a str>,
    items: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Item<'a> {
    surface: Surface,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Text<'a>>,
    /// An object is told to every node: where there is a text it says all.
    #[serde(skip_serializing_if = "Option::is_none")]
    digests: Option<Fingerprint>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Text<'a> {
    Block(LitStr<'a>),
    Quoted(&'a str),
}

impl Known {
    /// What is wanted, by place and name, without texts that are on disk.
    pub(super) fn trustees(&self, wanted: &Wanted) -> Vec<Trustee> {
        let of = |list: &List, name: &Arc<str>, item: &list::Item| {
            let (fingerprint, text) = match wanted.shown {
                true => (item.present && item.block == Block::No).then_some((item.seen, None))?,
                false => {
                    let trusted = self.trusted(list, name, item)?;
                    (*trusted.fingerprint, trusted.text.cloned())
                }
            };
            let (place, surface, name) = (list.place.clone(), list.surface, name.clone());
            Some(Trustee { place, surface, name, fingerprint, text })
        };
        let mut trustees: Vec<Trustee> =
            self.asked(&wanted.filter).filter_map(|(list, name, item)| of(list, name, item)).collect();
        trustees.sort_by(|one, other| {
            (&one.place, one.surface, &one.name).cmp(&(&other.place, other.surface, &other.name))
        });
        trustees
    }
}

/// The file, or the object of a name. `trustees` are in the order of their places.
pub(super) fn write(trustees: &[Trustee], as_object: Option<&str>) -> Result<String, String> {
    let same_server = |one: &Trustee, other: &Trustee| one.place.endpoint == other.place.endpoint;
    let servers = trustees.chunk_by(same_server).map(|trustees| {
        let endpoint = &trustees[0].place.endpoint;
        // An IPv6 address in a name has brackets, which mean something in globs.
        let name = globset::escape(&endpoint.server);
        Server {
            server: if as_object.is_some() { Globs::Many(vec![name]) } else { Globs::One(name) },
            path: &endpoint.path,
            address: endpoint.address,
            agent: endpoint.agent.as_deref(),
            items: trustees.iter().map(|trustee| Item::new(trustee, as_object.is_some())).collect(),
        }
    });
    let servers: Vec<Server<'_>> = servers.collect();
    let Some(name) = as_object else { return yaml(&File { version: VERSION, servers }) };
    check_name(name)?;
    let (version, kind) = (ToolBaseline::api_version(&()), ToolBaseline::kind(&()));
    let object =
        Object { api_version: &version, kind: &kind, metadata: Metadata { name }, spec: Spec { servers } };
    let size = serde_json::to_vec(&object).map_err(|error| error.to_string())?.len();
    if size > MAX_OBJECT {
        return Err(format!(
            "the object would have {} KiB, and an API server takes little more than {} (make several: `interlock tools --server \
             GLOB export`, or by `--surface` and `--name`)",
            size >> 10,
            MAX_OBJECT >> 10
        ));
    }
    yaml(&object)
}

/// As names of objects are (RFC 1123, section 2.1, in lower case).
fn check_name(name: &str) -> Result<(), String> {
    let is_of_label = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let is_label = |label: &str| {
        !label.is_empty()
            && label.chars().all(is_of_label)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_name = name.len() <= 253 && name.split('.').all(is_label);
    is_name.then_some(()).ok_or_else(|| {
        format!("{name:?} is no name of an object (lower-case letters, digits, `-` and `.`, at most 253)")
    })
}

fn yaml(document: &impl Serialize) -> Result<String, String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(document, options).map_err(|error| error.to_string())
}

impl<'a> Item<'a> {
    fn new(trustee: &'a Trustee, in_object: bool) -> Item<'a> {
        let of_text = || fingerprint_of(trustee.surface, trustee.text.as_deref()?);
        let is_said = in_object && of_text() == Some(trustee.fingerprint);
        Item {
            surface: trustee.surface,
            name: &trustee.name,
            revision: trustee.place.revision.as_deref(),
            principal: trustee.place.principal.as_deref(),
            text: trustee.text.as_deref().map(Text::new),
            digests: (!is_said).then_some(trustee.fingerprint),
        }
    }
}

impl<'a> Text<'a> {
    /// As it is, where YAML can say that: not every letter may be in a block.
    fn new(text: &'a str) -> Text<'a> {
        let plain = |letter: char| {
            letter == '\n' || matches!(letter, ' '..='~' | '\u{a1}'..='\u{2027}' | '\u{2030}'..='\u{d7ff}')
        };
        let block = text.chars().all(plain) && text.starts_with(['{', '"', '[']);
        if block { Text::Block(LitStr(text)) } else { Text::Quoted(text) }
    }
}
