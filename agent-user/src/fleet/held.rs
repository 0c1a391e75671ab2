//! What the API server told of last of objects of one sort. Kept on disk, so that a daemon that starts while no API server
//! answers goes by it.
//!
//! An object that cannot be taken changes nothing: what was taken last of it stays in force.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};
use serde::ser::{SerializeMap as _, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tracing::warn;

use crate::fingerprint::Digest;
use crate::state;

const VERSION: u32 = 1;
/// Most objects of one sort that are known, and most that they may say, in bytes of JSON.
const BOUNDS: Bounds = Bounds { objects: 10_000, bytes: 16 << 20 };

/// What objects of one sort say, read and checked.
pub trait Content: fmt::Debug + Sized {
    /// Below `state_dir`.
    const FILE: &'static str;
    /// What the file calls all objects, and what one of them says.
    const MEMBERS: [&'static str; 2];
    /// As the log names it.
    const WHAT: &'static str;

    /// The kind of the object with a name.
    fn kind(name: &Name) -> &'static str;

    /// Reads what an object says. The error names the part of it that is at fault, and the remedy.
    fn compile(of: &Name, written: &[Value]) -> Result<Self, String>;

    /// The object with its kind.
    fn id(of: &Name) -> String {
        format!("{}/{of}", Self::kind(of))
    }
}

/// Which object; those for the whole cluster come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name {
    /// `None`: it is of no namespace.
    pub namespace: Option<String>,
    pub name: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.namespace.iter().try_for_each(|namespace| write!(f, "{namespace}/"))?;
        f.write_str(&self.name)
    }
}

/// The objects that nodes go by.
#[derive(Debug)]
pub struct Held<C> {
    all: Mutex<All<C>>,
    changed: Notify,
    file: PathBuf,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    objects: usize,
    bytes: usize,
}

#[derive(Debug)]
struct All<C> {
    objects: BTreeMap<Name, Object<C>>,
    bounds: Bounds,
    /// There was no room to know any more of the last that was told of.
    left_out: Option<(Name, Fault)>,
    is_unsaved: bool,
    /// Something was heard that is neither on disk nor told of yet.
    is_heard: bool,
    /// What was on disk could not be read, and the API server has not told of all since.
    unreadable: Option<String>,
}

/// What is known of one object.
#[derive(Debug)]
struct Object<C> {
    good: Option<Good<C>>,
    fault: Option<Fault>,
}

/// What was taken last of it.
#[derive(Debug)]
struct Good<C> {
    /// As the object has it.
    written: Box<RawValue>,
    content: C,
}

/// What an object says now cannot be taken.
#[derive(Debug)]
struct Fault {
    written: Digest,
    error: String,
    is_told: bool,
}

impl<C: Content> Held<C> {
    /// With what an earlier daemon knew. Of a file that cannot be read nothing holds until the API server tells all again; see
    /// [`Held::unreadable`].
    pub fn load(state_dir: &Path) -> Held<C> {
        let file = state_dir.join(C::FILE);
        let mut all = All::new();
        match read::<C>(&file) {
            Ok(saved) => {
                for (name, written) in saved {
                    all.set(name, &written);
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                warn!(error, "{} do not hold until it tells of them", C::WHAT);
                all.unreadable = Some(error);
            }
        }
        Held { all: Mutex::new(all), changed: Notify::new(), file }
    }

    /// What is in force of each object, in order.
    pub fn each<T>(&self, look: impl Fn(&Name, &C) -> T) -> Vec<T> {
        let all = self.all();
        let good = all.objects.iter().filter_map(|(name, object)| Some((name, object.good.as_ref()?)));
        good.map(|(name, good)| look(name, &good.content)).collect()
    }

    /// How many objects have something in force.
    pub fn count(&self) -> usize {
        self.all().objects.values().filter(|object| object.good.is_some()).count()
    }

    /// Why what an earlier daemon knew does not hold. Gone as soon as the API server has told of all.
    pub fn unreadable(&self) -> Option<String> {
        self.all().unreadable.clone()
    }

    /// What is wrong, by object.
    pub fn faults(&self) -> BTreeMap<String, String> {
        self.all().faults().map(|(name, fault)| (C::id(name), fault.error.clone())).collect()
    }

    /// What is wrong, each fault once.
    pub fn new_faults(&self) -> Vec<String> {
        let mut all = self.all();
        let new = |(name, fault): (&Name, &mut Fault)| {
            let is_told = std::mem::replace(&mut fault.is_told, true);
            (!is_told).then(|| format!("{}: {}", C::id(name), fault.error))
        };
        all.faults_mut().filter_map(new).collect()
    }

    /// Waits for the next change. Changes since the last call count.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// An object says this.
    pub(super) fn set(&self, name: Name, written: &[Value]) {
        self.change(|all| all.set(name, written));
    }

    /// The same, as one of all that are told of, one after the other: [`Held::keep_only`] follows.
    pub(super) fn hear(&self, name: Name, written: &[Value]) {
        let mut all = self.all();
        all.is_heard |= all.set(name, written);
    }

    /// These are all objects that are of no namespace, or all that are of one; what they say was heard before.
    pub(super) fn keep_only(&self, namespaced: bool, names: &BTreeSet<Name>) {
        self.change(|all| {
            let before = all.objects.len();
            all.objects.retain(|name, _| name.namespace.is_some() != namespaced || names.contains(name));
            let mut is_changed = std::mem::take(&mut all.is_heard);
            is_changed |= before != all.objects.len();
            is_changed |= all.unreadable.take().is_some();
            let is_gone = |(name, _): &mut (Name, Fault)| {
                name.namespace.is_some() == namespaced && !names.contains(name)
            };
            is_changed | all.left_out.take_if(is_gone).is_some()
        });
    }

    pub(super) fn delete(&self, name: &Name) {
        self.change(|all| all.objects.remove(name).is_some());
    }

    fn change(&self, change: impl FnOnce(&mut All<C>) -> bool) {
        let mut all = self.all();
        if !change(&mut all) {
            return;
        }
        all.is_unsaved = true;
        // On disk before they are in force: a daemon that starts the moment after goes by the same.
        if let Err(error) = self.write(&mut all) {
            warn!(error = format!("{error:#}"), "{} are in force and not saved yet", C::WHAT);
        }
        drop(all);
        self.changed.notify_one();
    }

    /// Writes to disk what could not be written when it changed.
    pub fn save(&self) -> Result<()> {
        // Held while it is written, so that nothing newer is written over.
        self.write(&mut self.all())
    }

    fn write(&self, all: &mut All<C>) -> Result<()> {
        if !all.is_unsaved {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&Saved(all))?;
        state::replace(&self.file, &bytes).with_context(|| format!("write {}", self.file.display()))?;
        all.is_unsaved = false;
        Ok(())
    }

    fn all(&self) -> MutexGuard<'_, All<C>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Content> All<C> {
    fn new() -> All<C> {
        All {
            objects: BTreeMap::new(),
            bounds: BOUNDS,
            left_out: None,
            is_unsaved: false,
            is_heard: false,
            unreadable: None,
        }
    }

    /// Whether that changes anything.
    fn set(&mut self, name: Name, written: &[Value]) -> bool {
        let Ok(raw) = serde_json::value::to_raw_value(written) else { return false };
        let digest = Digest::of(raw.get().as_bytes());
        let object = self.objects.get(&name);
        let is_same = |object: &Object<C>| match (&object.fault, &object.good) {
            (Some(fault), _) => fault.written == digest,
            (None, good) => good.as_ref().is_some_and(|good| good.written.get() == raw.get()),
        };
        if object.is_some_and(is_same) {
            return false;
        }
        let others: usize =
            self.objects.iter().filter(|(of, _)| **of != name).map(|(_, object)| object.size()).sum();
        let compiled = match others + raw.get().len() > self.bounds.bytes {
            true => Err(self.no_room()),
            false => C::compile(&name, written),
        };
        let fault = |error| Fault { written: digest, error, is_told: false };
        if object.is_none() && self.objects.len() >= self.bounds.objects {
            let is_told = |(of, before): &(Name, Fault)| *of == name && before.written == digest;
            if self.left_out.as_ref().is_some_and(is_told) {
                return false;
            }
            self.left_out = Some((name, fault(self.no_room())));
            return true;
        }
        self.left_out.take_if(|(of, _)| *of == name);
        let object = self.objects.entry(name).or_insert(Object { good: None, fault: None });
        match compiled {
            Ok(content) => *object = Object { good: Some(Good { written: raw, content }), fault: None },
            Err(error) => object.fault = Some(fault(error)),
        }
        true
    }

    fn no_room(&self) -> String {
        let Bounds { objects, bytes } = self.bounds;
        format!(
            "a node knows {objects} such objects and {} KiB of them, and this is more (delete what is not needed, and make \
             this one again)",
            bytes >> 10
        )
    }

    fn faults(&self) -> impl Iterator<Item = (&Name, &Fault)> {
        let faults = self.objects.iter().filter_map(|(name, object)| Some((name, object.fault.as_ref()?)));
        faults.chain(self.left_out.iter().map(|(name, fault)| (name, fault)))
    }

    fn faults_mut(&mut self) -> impl Iterator<Item = (&Name, &mut Fault)> {
        let faults = self.objects.iter_mut();
        let faults = faults.filter_map(|(name, object)| Some((name, object.fault.as_mut()?)));
        faults.chain(self.left_out.iter_mut().map(|(name, fault)| (&*name, fault)))
    }
}

impl<C> Object<C> {
    fn size(&self) -> usize {
        self.good.as_ref().map_or(0, |good| good.written.get().len())
    }
}

/// All that is good, as it is written.
struct Saved<'a, C>(&'a All<C>);

/// One object, as it is written.
struct SavedObject<'a> {
    name: &'a Name,
    says: &'static str,
    written: &'a RawValue,
}

impl<C: Content> Serialize for Saved<'_, C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [all, says] = C::MEMBERS;
        let good = self.0.objects.iter().filter_map(|(name, object)| Some((name, object.good.as_ref()?)));
        let objects = good.map(|(name, good)| SavedObject { name, says, written: &good.written });
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("version", &VERSION)?;
        map.serialize_entry(all, &objects.collect::<Vec<_>>())?;
        map.end()
    }
}

impl Serialize for SavedObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("namespace", &self.name.namespace)?;
        map.serialize_entry("name", &self.name.name)?;
        map.serialize_entry(self.says, self.written)?;
        map.end()
    }
}

fn read<C: Content>(file: &Path) -> Result<Vec<(Name, Vec<Value>)>> {
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes.with_context(|| format!("read {}", file.display()))?,
    };
    let mut content: Value = serde_json::from_slice(&bytes).with_context(|| file.display().to_string())?;
    let version = &content["version"];
    ensure!(*version == VERSION, "{}: version {version} is not known", file.display());
    let [all, says] = C::MEMBERS;
    let Value::Array(objects) = content[all].take() else {
        anyhow::bail!("{}: `{all}` is no list", file.display());
    };
    let object = |mut object: Value| {
        let name = Name::deserialize(&object)?;
        Ok((name, Vec::deserialize(object[says].take())?))
    };
    let objects: serde_json::Result<_> = objects.into_iter().map(object).collect();
    objects.with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Numbers that are not odd.
    #[derive(Debug)]
    struct Even(Vec<u64>);

    impl Content for Even {
        const FILE: &'static str = "even.json";
        const MEMBERS: [&'static str; 2] = ["evens", "numbers"];
        const WHAT: &'static str = "even numbers";

        fn kind(_: &Name) -> &'static str {
            "Even"
        }

        fn compile(_: &Name, written: &[Value]) -> Result<Even, String> {
            let numbers = written.iter().map(|number| match number.as_u64() {
                Some(number) if number % 2 == 0 => Ok(number),
                _ => Err(format!("{number} is odd")),
            });
            numbers.collect::<Result<_, _>>().map(Even)
        }
    }

    fn name(namespace: Option<&str>, name: &str) -> Name {
        Name { namespace: namespace.map(str::to_owned), name: name.to_owned() }
    }

    /// The API server tells of all that are of no namespace.
    fn tell_all(held: &Held<Even>, all: &[(&str, Value)]) {
        let names = all.iter().map(|(of, number)| {
            held.hear(name(None, of), std::slice::from_ref(number));
            name(None, of)
        });
        held.keep_only(false, &names.collect());
    }

    fn numbers(held: &Held<Even>) -> Vec<u64> {
        held.each(|_, even| even.0.clone()).concat()
    }

    #[test]
    fn what_cannot_be_taken_leaves_what_was_good() {
        let dir = tempfile::tempdir().unwrap();
        let held = Held::<Even>::load(dir.path());
        let (team, all) = (name(Some("agents"), "team"), name(None, "all"));
        held.set(team.clone(), &[json!(2)]);
        held.set(all.clone(), &[json!(4)]);
        assert_eq!(numbers(&held), [4, 2]);
        held.set(team.clone(), &[json!(3)]);
        assert_eq!(numbers(&held), [4, 2]);
        assert_eq!(held.new_faults(), ["Even/agents/team: 3 is odd"]);
        assert!(held.new_faults().is_empty() && held.faults().len() == 1);
        assert_eq!(numbers(&Held::load(dir.path())), [4, 2], "the next daemon");
        held.set(team.clone(), &[json!(6)]);
        assert!(held.faults().is_empty());
        held.delete(&all);
        assert_eq!(numbers(&held), [6]);
        // What was deleted while nobody listened.
        held.set(all, &[json!(4)]);
        held.keep_only(true, &BTreeSet::new());
        assert_eq!(numbers(&held), [4]);
        tell_all(&held, &[("new", json!(8))]);
        assert_eq!(numbers(&Held::load(dir.path())), [8]);
    }

    #[test]
    fn a_broken_file_is_told_of_until_all_is_told_again() {
        let dir = tempfile::tempdir().unwrap();
        for text in
            ["", "{}", r#"{"version": 2, "evens": []}"#, r#"{"version": 1, "evens": [{"name": "a"}]}"#]
        {
            fs::write(dir.path().join(Even::FILE), text).unwrap();
            let held = Held::<Even>::load(dir.path());
            assert!(numbers(&held).is_empty(), "{text:?}");
            assert!(held.unreadable().is_some_and(|error| error.contains(Even::FILE)), "{text:?}");
            held.set(name(None, "a"), &[json!(2)]);
            assert!(held.unreadable().is_some(), "that is not all");
            tell_all(&held, &[]);
            assert_eq!(held.unreadable(), None);
            assert_eq!(Held::<Even>::load(dir.path()).unreadable(), None);
        }
    }

    #[test]
    fn what_there_is_no_room_for_is_not_taken_and_said() {
        let dir = tempfile::tempdir().unwrap();
        let held = Held::<Even>::load(dir.path());
        held.all().bounds = Bounds { objects: 2, bytes: 12 };
        held.set(name(None, "a"), &[json!(2), json!(4)]);
        held.set(name(None, "b"), &[json!(1_000_000)]);
        assert_eq!(numbers(&held), [2, 4]);
        assert!(held.faults()["Even/b"].contains("delete"), "{:?}", held.faults());
        held.set(name(None, "a"), &[json!(2), json!(4), json!(6), json!(8), json!(10), json!(12)]);
        assert_eq!(numbers(&held), [2, 4], "nor does one become longer than there is room");
        held.set(name(None, "b"), &[json!(2)]);
        held.set(name(None, "c"), &[]);
        held.set(name(None, "d"), &[]);
        assert_eq!(
            held.faults().keys().collect::<Vec<_>>(),
            ["Even/a", "Even/d"],
            "the last of those left out"
        );
        held.delete(&name(None, "b"));
        held.set(name(None, "d"), &[json!(2)]);
        assert_eq!(numbers(&held), [2, 4, 2]);
        assert_eq!(held.faults().keys().collect::<Vec<_>>(), ["Even/a"], "it is known now");
        tell_all(&held, &[("d", json!(2))]);
        assert!(held.faults().is_empty());
    }
}
