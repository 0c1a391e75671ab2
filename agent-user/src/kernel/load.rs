//! Loads the kernel object against the pinned maps. Attaches nothing.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use anyhow::{Context as _, bail};
use aya::programs::Program;
use aya::{Ebpf, EbpfLoader};
use aya_log::{EbpfLogger, Level};

use super::maps::{SPECS, check, maps_dir};

/// A hook: the program that serves it and the attach type of `linux/bpf.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub(super) name: &'static str,
    pub(super) attach_type: u32,
}

/// Hooks of the depth-1 cgroups: what must also meet a socket that was made outside an agent's cgroups, or carried out.
pub(super) const HOOKS: [Hook; 8] = [
    Hook { name: "bind4", attach_type: 8 },
    Hook { name: "bind6", attach_type: 9 },
    Hook { name: "connect4", attach_type: 10 },
    Hook { name: "connect6", attach_type: 11 },
    Hook { name: "sendmsg4", attach_type: 14 },
    Hook { name: "sendmsg6", attach_type: 15 },
    Hook { name: "getpeername4", attach_type: 29 },
    Hook { name: "getpeername6", attach_type: 30 },
];

/// What sits on each agent's own cgroup, so that strangers pay nothing for it.
pub(super) const AGENT_HOOKS: [Hook; 2] = [Hook { name: "sock_create", attach_type: 2 }, EGRESS];
pub(super) const EGRESS: Hook = Hook { name: "egress", attach_type: 1 };

/// The programs in the kernel, alive as long as this or a link to them is.
pub(super) struct Object {
    bpf: Ebpf,
}

impl Object {
    /// The descriptor of a hook's program.
    pub(super) fn program(&self, hook: Hook) -> anyhow::Result<BorrowedFd<'_>> {
        let program = self
            .bpf
            .program(hook.name)
            .with_context(|| format!("program {}: not in the object", hook.name))?;
        Ok(program.fd().with_context(|| format!("program {}: not loaded", hook.name))?.as_fd())
    }

    /// The reader of what the programs log.
    pub(super) fn take_logger(&mut self) -> anyhow::Result<EbpfLogger<&'static dyn log::Log>> {
        EbpfLogger::init(&mut self.bpf).context("open the kernel log")
    }
}

/// Loads the embedded object; its maps are those pinned below `pin_dir`, made if absent.
pub(super) fn load(pin_dir: &Path) -> anyhow::Result<Object> {
    if OBJECT.is_empty() {
        bail!("built without the kernel object; run `cargo xtask ebpf`, then build again");
    }
    let dir = maps_dir(pin_dir);
    super::create_dir(&dir)?;
    let mut loader = EbpfLoader::new();
    let set_retval = u32::from(kernel_has_set_retval());
    let level = if tracing::enabled!(target: "agent_ebpf", tracing::Level::DEBUG) {
        Level::Debug
    } else {
        Level::Warn
    } as u8;
    loader.override_global("SET_RETVAL", &set_retval, true);
    loader.override_global(aya_log::LEVEL, &level, false);
    for spec in &SPECS {
        let path = dir.join(spec.name);
        if path.exists() {
            check(&path, spec)?;
        }
        loader.map_pin_path(spec.name, path);
    }
    let mut bpf =
        loader.load(OBJECT).context("load the kernel object (needs CAP_BPF, CAP_NET_ADMIN and BTF)")?;
    for (name, program) in bpf.programs_mut() {
        match program {
            Program::CgroupSock(program) => program.load(),
            Program::CgroupSockAddr(program) => program.load(),
            Program::CgroupSkb(program) => program.load(),
            _ => bail!("program {name}: of a type that the daemon does not attach"),
        }
        .with_context(|| format!("load program {name}"))?;
    }
    Ok(Object { bpf })
}

// `bpf_set_retval` came with 5.18. Without it every refusal is EPERM.
fn kernel_has_set_retval() -> bool {
    aya::util::KernelVersion::current()
        .is_ok_and(|version| version >= aya::util::KernelVersion::new(5, 18, 0))
}

/// What `build.rs` has embedded; empty when the object was not built.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/agent-ebpf"));
