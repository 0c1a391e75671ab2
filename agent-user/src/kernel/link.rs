//! Links between programs and cgroups, pinned so that they hold without the daemon.
//!
//! The pins are the truth: a new daemon swaps the program behind each (`BPF_LINK_UPDATE`), which leaves no moment
//! without one. A link whose cgroup is gone stays pinned and does nothing, so every look at a link asks the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;

use super::cgroup;
use super::load::Hook;
use super::sys;

/// Whether one link does its work, as the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkHealth {
    /// Name of the program, which is the hook.
    pub name: String,
    /// The cgroup it was attached to; where that is gone, its id in words.
    pub cgroup: PathBuf,
    /// False: unpinned, detached by force, or its cgroup is gone.
    pub attached: bool,
}

/// One link: a hook on a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) hook: String,
    pub(super) cgroup_id: u64,
}

impl Place {
    pub(super) fn new(hook: Hook, cgroup_id: u64) -> Place {
        Place { hook: hook.name.to_owned(), cgroup_id }
    }

    // bpffs allows no dot in a name.
    fn file_name(&self) -> String {
        format!("{}-{}", self.hook, self.cgroup_id)
    }

    fn parse(name: &str) -> Option<Place> {
        let (hook, id) = name.rsplit_once('-')?;
        Some(Place { hook: hook.to_owned(), cgroup_id: id.parse().ok()? })
    }
}

/// Every link of this daemon. The descriptors stay open: a deleted pin alone then detaches nothing.
#[derive(Debug)]
pub(super) struct Links {
    dir: PathBuf,
    open: Mutex<BTreeMap<Place, OwnedFd>>,
}

impl Links {
    /// The links pinned in a folder, made if absent.
    pub(super) fn open(dir: PathBuf) -> anyhow::Result<Links> {
        super::create_dir(&dir)?;
        let mut open = BTreeMap::new();
        for place in pinned(&dir)? {
            let path = dir.join(place.file_name());
            open.insert(
                place,
                sys::open_pin(&path).with_context(|| format!("open link {}", path.display()))?,
            );
        }
        Ok(Links { dir, open: Mutex::new(open) })
    }

    /// Makes a hook on a cgroup run this program: swaps it into a living link, else attaches and pins a new one.
    pub(super) fn ensure(
        &self,
        hook: Hook,
        cgroup_dir: &Path,
        cgroup_id: u64,
        program: BorrowedFd<'_>,
    ) -> anyhow::Result<()> {
        let place = Place::new(hook, cgroup_id);
        let path = self.dir.join(place.file_name());
        let subject = || format!("attach {} to {}", hook.name, cgroup_dir.display());
        let mut open = self.lock();
        if let Some(link) = open.get(&place)
            && path.exists()
            && let Ok(info) = sys::link_info(link.as_fd())
            && info.cgroup_id == cgroup_id
        {
            if info.program_id == sys::program_id(program).with_context(subject)? {
                return Ok(());
            }
            return sys::update_link(link.as_fd(), program).with_context(subject);
        }
        let cgroup = File::open(cgroup_dir).with_context(|| format!("open {}", cgroup_dir.display()))?;
        // The new link comes first, so that a link without a pin is not dropped into a gap.
        let link = sys::create_link(program, cgroup.as_fd(), hook.attach_type).with_context(subject)?;
        unpin(&path)?;
        sys::pin(link.as_fd(), &path).with_context(|| format!("pin link {}", path.display()))?;
        open.insert(place, link);
        Ok(())
    }

    /// Detaches and unpins.
    pub(super) fn remove(&self, place: &Place) -> anyhow::Result<()> {
        let mut open = self.lock();
        unpin(&self.dir.join(place.file_name()))?;
        open.remove(place);
        Ok(())
    }

    /// Every link there is, dead ones included.
    pub(super) fn places(&self) -> BTreeSet<Place> {
        self.lock().keys().cloned().collect()
    }

    pub(super) fn health(&self) -> Vec<LinkHealth> {
        let open = self.lock();
        open.iter().map(|(place, link)| health(&self.dir, place, link.as_fd())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Place, OwnedFd>> {
        // The map is consistent between any two statements, whoever panicked.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a link of this hook that is pinned there does its work, on whichever cgroup.
pub(super) fn is_attached_somewhere(dir: &Path, hook: &str) -> anyhow::Result<bool> {
    let mut places = pinned(dir)?.into_iter().filter(|place| place.hook == hook);
    Ok(places.any(|place| {
        sys::open_pin(&dir.join(place.file_name())).is_ok_and(|link| is_alive(&place, link.as_fd()))
    }))
}

fn is_alive(place: &Place, link: BorrowedFd<'_>) -> bool {
    sys::link_info(link).is_ok_and(|info| info.cgroup_id == place.cgroup_id)
}

fn health(dir: &Path, place: &Place, link: BorrowedFd<'_>) -> LinkHealth {
    let cgroup = cgroup::path_of(place.cgroup_id)
        .unwrap_or_else(|_| PathBuf::from(format!("cgroup {} (gone)", place.cgroup_id)));
    LinkHealth {
        name: place.hook.clone(),
        cgroup,
        attached: is_alive(place, link) && dir.join(place.file_name()).exists(),
    }
}

/// Detaches every link pinned in a folder, even those that a living daemon holds open.
pub(super) fn detach_pinned(dir: &Path) -> anyhow::Result<()> {
    for place in pinned(dir)? {
        let path = dir.join(place.file_name());
        let link = sys::open_pin(&path).with_context(|| format!("open link {}", path.display()))?;
        match sys::detach_link(link.as_fd()) {
            // The cgroup is gone, and the link with it.
            Err(error) if error.raw_os_error() != Some(libc::ENOLINK) => {
                return Err(error).with_context(|| format!("detach {}", path.display()));
            }
            _ => unpin(&path)?,
        }
    }
    Ok(())
}

fn pinned(dir: &Path) -> anyhow::Result<Vec<Place>> {
    let mut places = Vec::new();
    if !dir.exists() {
        return Ok(places);
    }
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        places.extend(entry?.file_name().to_str().and_then(Place::parse));
    }
    Ok(places)
}

fn unpin(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("unpin {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_names_survive_the_round_trip() {
        let place = Place { hook: "connect4".to_owned(), cgroup_id: 4711 };
        assert_eq!(Place::parse(&place.file_name()), Some(place));
        assert_eq!(Place::parse("something else"), None);
    }
}
