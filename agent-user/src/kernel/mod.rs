//! The kernel side from user space: load, attach, hold, stop. The only user of `aya`, and with its raw system
//! calls the only place of `unsafe`.
//!
//! Everything that must outlive the daemon is pinned below `<pin_dir>/v<ABI_VERSION>/`: `maps/` is what is known,
//! `links/` is what is in force. When the daemon dies both stay, and agents stay held. Reading order: `Kernel`
//! here, then `link` (attach without a gap), `maps` (what is written), `load`, and the tools beside them.

pub mod allocator;
pub mod cgroup;
mod destroy;
mod destroyed;
mod events;
mod execs;
mod filter;
mod levels;
mod link;
mod load;
mod maps;
pub mod netns;
mod offline;
pub mod process;
pub mod sock_diag;
pub mod syn;
mod sys;
pub mod tcp;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use agent_abi::{ABI_VERSION, NOBODY, Settings, UNCLASSIFIED, is_agent};
use anyhow::{Context as _, bail, ensure};
use nix::time::{ClockId, clock_gettime};

pub use self::events::{Events, KernelLog};
pub use self::execs::{Exec, Execs};
use self::levels::Levels;
pub use self::link::LinkHealth;
use self::link::{Links, Place};
use self::load::{AGENT_HOOKS, EGRESS, HOOKS, Hook, Object};
pub use self::maps::{Counters, Maps};
pub use self::offline::{HeldCgroup, Offline};

/// How to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// A folder on a bpffs, e.g. `/sys/fs/bpf/interlock`.
    pub pin_dir: PathBuf,
    /// The cgroup v2 folders that get the hooks: the depth-1 cgroups below which agents may live.
    pub attach: Vec<PathBuf>,
    /// What the kernel side goes by. Heartbeat, daemon cgroup, ABI version and levels are filled in here.
    pub settings: Settings,
}

/// The attached kernel side. Dropping it detaches nothing.
pub struct Kernel {
    pin_dir: PathBuf,
    maps: Maps,
    links: Links,
    object: Mutex<Object>,
    /// As last written; a heartbeat writes it again with a new time.
    settings: Mutex<Settings>,
    levels: Mutex<Levels>,
}

impl Kernel {
    /// Loads the object against the pinned maps and puts it in force. Over the pins of an earlier daemon every
    /// program is swapped in place; agents held before stay held throughout.
    pub fn attach(options: &Options) -> anyhow::Result<Kernel> {
        mount_bpffs(&options.pin_dir)?;
        let object = load::load(&options.pin_dir)?;
        let maps = Maps::open(&options.pin_dir)?;
        let links = Links::open(version_dir(&options.pin_dir).join("links"))?;
        let settings = Settings {
            daemon_cgroup: cgroup::id(&cgroup::dir_of(std::process::id())?)?,
            abi_version: ABI_VERSION,
            // Everywhere, until it is known where agents are.
            skipped_levels: 0,
            ..options.settings
        };
        let kernel = Kernel {
            pin_dir: options.pin_dir.clone(),
            maps,
            links,
            object: Mutex::new(object),
            settings: Mutex::new(settings),
            levels: Mutex::default(),
        };
        kernel.beat()?;
        kernel.maps.inherit(&options.pin_dir)?;
        kernel.maps.reserve_everybody()?;
        // Agents first: what moved to their own cgroups is there before it leaves the cgroups above.
        kernel.refresh_held()?;
        kernel.sync_attach(&options.attach)?;
        Ok(kernel)
    }

    /// Makes the hooks sit on exactly these cgroups: new ones get them, ones that left the list lose them.
    pub fn sync_attach(&self, attach: &[PathBuf]) -> anyhow::Result<()> {
        ensure!(
            self.pin_dir.exists(),
            "{} is gone: everything was detached; restart the daemon to hold agents again",
            self.pin_dir.display()
        );
        let mut wanted = BTreeSet::new();
        for (hook, dir) in attach.iter().flat_map(|dir| HOOKS.map(|hook| (hook, dir))) {
            match self.put(hook, dir) {
                Ok(cgroup_id) => wanted.insert(Place::new(hook, cgroup_id)),
                // Listed a moment ago, removed since: nobody is left in it.
                Err(error) if cgroup::is_gone(&error) => continue,
                Err(error) => return Err(error),
            };
        }
        let held = self.maps.held()?;
        for place in self.links.places() {
            let is_agents =
                AGENT_HOOKS.iter().any(|hook| hook.name == place.hook) && held.contains_key(&place.cgroup_id);
            if !is_agents && !wanted.contains(&place) {
                self.links.remove(&place)?;
            }
        }
        Ok(())
    }

    /// Puts the hooks on those of these cgroups that have none yet. Cheap when there are none.
    pub fn attach_new(&self, attach: &[PathBuf]) -> anyhow::Result<()> {
        if attach.iter().all(|dir| self.is_covered(dir)) { Ok(()) } else { self.sync_attach(attach) }
    }

    /// Says that the daemon lives. With `fail: open`, silence for `stale_after_ns` lets agents through.
    pub fn beat(&self) -> anyhow::Result<()> {
        let mut settings = lock(&self.settings);
        settings.heartbeat_ns = monotonic_ns();
        self.maps.set_settings(&settings)
    }

    /// Replaces the settings; heartbeat, daemon cgroup, ABI version and levels stay ours.
    pub fn set_settings(&self, new: Settings) -> anyhow::Result<()> {
        let mut settings = lock(&self.settings);
        *settings = Settings {
            heartbeat_ns: monotonic_ns(),
            daemon_cgroup: settings.daemon_cgroup,
            abi_version: ABI_VERSION,
            skipped_levels: settings.skipped_levels,
            ..new
        };
        self.maps.set_settings(&settings)
    }

    /// Lets UDP other than DNS through, or not (`defaults.quic`).
    pub fn allow_udp(&self, allowed: bool) -> anyhow::Result<()> {
        let settings = Settings { udp_allowed: allowed.into(), ..*lock(&self.settings) };
        self.set_settings(settings)
    }

    /// Holds a cgroup and all below it as this agent, whose state must have been set before. The packet filter
    /// comes first, so that the cgroup is never known but half held.
    pub fn hold(&self, cgroup_dir: &Path, cgroup_id: u64, agent: u32) -> anyhow::Result<()> {
        ensure!(is_agent(agent), "agent {agent}: agents' numbers begin at 1");
        self.know(cgroup_dir, cgroup_id)?;
        for hook in AGENT_HOOKS {
            self.put(hook, cgroup_dir)?;
        }
        self.maps.set_agent(cgroup_id, agent)
    }

    /// Lets whoever is in a cgroup pass, though it lies in a guarded one.
    pub fn spare(&self, cgroup_dir: &Path, cgroup_id: u64) -> anyhow::Result<()> {
        self.know(cgroup_dir, cgroup_id)?;
        self.maps.set_agent(cgroup_id, NOBODY)
    }

    /// Refuses the connections of whoever is in a cgroup, until a cgroup below it is held or spared. Its packets are not
    /// looked at: most of it is no agent's.
    pub fn guard(&self, cgroup_dir: &Path, cgroup_id: u64) -> anyhow::Result<()> {
        self.know(cgroup_dir, cgroup_id)?;
        self.maps.set_agent(cgroup_id, UNCLASSIFIED)
    }

    // Before the kernel side is told of a cgroup: it must not skip its level then.
    fn know(&self, cgroup_dir: &Path, cgroup_id: u64) -> anyhow::Result<()> {
        let found = cgroup::id(cgroup_dir)?;
        if found != cgroup_id {
            bail!("hold {}: is cgroup {found} now, not {cgroup_id}", cgroup_dir.display());
        }
        let depth = cgroup::depth(cgroup_dir)?;
        if depth == 0 || depth > agent_abi::MAX_CGROUP_LEVEL as usize {
            bail!(
                "hold {}: lies at depth {depth}, the kernel side sees 1 to {}",
                cgroup_dir.display(),
                agent_abi::MAX_CGROUP_LEVEL
            );
        }
        if !self.is_covered(cgroup_dir) {
            bail!(
                "hold {}: no hooks on any cgroup above it (add its depth-1 cgroup first)",
                cgroup_dir.display()
            );
        }
        self.change_levels(|levels| levels.add(cgroup_id, depth))
    }

    /// Forgets a cgroup that is held, spared or guarded. Sockets of an agent keep their tag and go on through the daemon
    /// until they close.
    pub fn let_go(&self, cgroup_id: u64) -> anyhow::Result<()> {
        self.forget(cgroup_id)?;
        self.change_levels(|levels| levels.remove(cgroup_id))
    }

    /// Refusals as they happen. One reader at a time; needs a tokio runtime.
    pub fn events(&self) -> anyhow::Result<Events> {
        Events::open(&self.pin_dir)
    }

    /// What the programs log, for a task that forwards it to `tracing`. Can be taken once.
    pub fn take_log(&self) -> anyhow::Result<KernelLog> {
        KernelLog::new(lock(&self.object).take_logger()?)
    }

    /// Whether every link does its work, as the kernel says, not as we remember.
    pub fn health(&self) -> Vec<LinkHealth> {
        self.links.health()
    }

    /// Takes out what a daemon of another ABI version has left. Call it once the agents are held again: until
    /// then the old programs hold them.
    pub fn retire_other_versions(&self) -> anyhow::Result<()> {
        let current = version_dir(&self.pin_dir);
        for entry in
            fs::read_dir(&self.pin_dir).with_context(|| format!("read {}", self.pin_dir.display()))?
        {
            let path = entry?.path();
            if path != current {
                detach_version(&path)?;
            }
        }
        Ok(())
    }

    /// Undoes everything below a pin folder, whatever its version: agents run free from here on.
    pub fn detach_all(pin_dir: &Path) -> anyhow::Result<()> {
        if !pin_dir.exists() {
            return Ok(());
        }
        for entry in fs::read_dir(pin_dir).with_context(|| format!("read {}", pin_dir.display()))? {
            detach_version(&entry?.path())?;
        }
        fs::remove_dir(pin_dir).with_context(|| format!("remove {}", pin_dir.display()))
    }

    // Swaps the packet filter of every held cgroup, and forgets those whose cgroup is gone.
    fn refresh_held(&self) -> anyhow::Result<()> {
        let held = self.maps.held()?;
        let mut found = Levels::default();
        for place in self.links.places().into_iter().filter(|place| place.hook == EGRESS.name) {
            if !held.contains_key(&place.cgroup_id) {
                self.links.remove(&place)?;
            }
        }
        for cgroup_id in self.maps.known()?.into_keys() {
            match cgroup::path_of(cgroup_id) {
                Ok(dir) => {
                    for hook in AGENT_HOOKS.iter().filter(|_| held.contains_key(&cgroup_id)) {
                        self.put(*hook, &dir)?;
                    }
                    found.add(cgroup_id, cgroup::depth(&dir)?);
                }
                Err(error) if cgroup::is_gone(&error) => self.forget(cgroup_id)?,
                Err(error) => return Err(error).with_context(|| format!("find cgroup {cgroup_id}")),
            }
        }
        self.change_levels(|levels| *levels = found)
    }

    fn forget(&self, cgroup_id: u64) -> anyhow::Result<()> {
        self.maps.remove_agent(cgroup_id)?;
        AGENT_HOOKS.iter().try_for_each(|hook| self.links.remove(&Place::new(*hook, cgroup_id)))
    }

    // What is told to the kernel side is as old as the lock: a level that is taken into use is never skipped meanwhile.
    fn change_levels(&self, change: impl FnOnce(&mut Levels)) -> anyhow::Result<()> {
        let mut levels = lock(&self.levels);
        change(&mut levels);
        let mut settings = lock(&self.settings);
        let next = Settings { skipped_levels: levels.skipped(), ..*settings };
        self.maps.set_settings(&next)?;
        *settings = next;
        Ok(())
    }

    fn is_covered(&self, cgroup_dir: &Path) -> bool {
        let places = self.links.places();
        cgroup_dir
            .ancestors()
            .filter_map(|dir| cgroup::id(dir).ok())
            .any(|id| places.contains(&Place { hook: "connect4".to_owned(), cgroup_id: id }))
    }

    // Gives the id of the cgroup.
    fn put(&self, hook: Hook, dir: &Path) -> anyhow::Result<u64> {
        let cgroup_id = cgroup::id(dir)?;
        let object = lock(&self.object);
        self.links.ensure(hook, dir, cgroup_id, object.program(hook)?)?;
        Ok(cgroup_id)
    }
}

impl Deref for Kernel {
    type Target = Maps;

    fn deref(&self) -> &Maps {
        &self.maps
    }
}

/// `CLOCK_MONOTONIC`, the clock of the kernel side's times.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or_else(|_| std::time::Duration::ZERO, Into::into);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn version_dir(pin_dir: &Path) -> PathBuf {
    pin_dir.join(format!("v{ABI_VERSION}"))
}

fn mount_bpffs(pin_dir: &Path) -> anyhow::Result<()> {
    let bpffs = Path::new("/sys/fs/bpf");
    if !pin_dir.starts_with(bpffs) || is_bpffs(bpffs) {
        return Ok(());
    }
    nix::mount::mount(Some("bpf"), bpffs, Some("bpf"), nix::mount::MsFlags::empty(), None::<&str>)
        .context("mount bpffs on /sys/fs/bpf (mount it on the host, or set another pin_dir)")
}

fn is_bpffs(path: &Path) -> bool {
    nix::sys::statfs::statfs(path)
        .is_ok_and(|statfs| statfs.filesystem_type() == nix::sys::statfs::FsType(libc::BPF_FS_MAGIC))
}

fn detach_version(dir: &Path) -> anyhow::Result<()> {
    link::detach_pinned(&dir.join("links"))?;
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("unpin {}", dir.display()))
        }
        _ => Ok(()),
    }
}

// For root only: a pinned map is as good as the stop word.
fn create_dir(dir: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("create {} (mount bpffs there)", dir.display()))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each value is whole between any two statements, whoever panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// Every connection task shares one.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Kernel>();
};
