//! `interlock stop` with no daemon to ask: it is dead, or hangs. What is pinned is enough to cut agents off; what was
//! done is left in the spool, for the daemon to take up as an ordinary stop.
//!
//! Order matters. The kernel is told first, because a disk may be slow; the order is left before the kernel is told
//! again, so that a daemon that wakes up in between cannot lift it unnoticed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;

use crate::control::StopOrder;
use crate::decide::stop::{Level, Operator, Selector, Stop};
use crate::kernel::{Offline, cgroup, process};
use crate::orders::enforce::{Target, enforce_on};
use crate::orders::receipt::{Effect, Receipt, Refusals, Report, StopView};
use crate::place::Places;
use crate::spool::Spool;
use crate::state::State;

/// Agents that are cut at a time.
const AT_A_TIME: usize = 32;

/// Carries an order out on what is pinned, and leaves it for the daemon.
///
/// # Errors
/// Nothing was done: the order is not one, or comes from inside an agent's cgroup.
pub(super) fn stop(places: &Places, order: StopOrder, id: &str) -> Result<Receipt> {
    let selector = Selector::compile(order.scope).map_err(anyhow::Error::msg)?;
    if !selector.is_whole_agents() {
        bail!("no daemon reads calls now, so {selector} cannot be told apart: stop agent=… or --all");
    }
    if order.reason.trim().is_empty() {
        bail!("give a reason; whoever is stopped will be shown it");
    }
    let kernel = Offline::open(&places.pin_dir);
    if let Err(error) = &kernel
        && error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::PermissionDenied)
    {
        bail!("{error:#} (be root)");
    }
    if let Ok(kernel) = &kernel {
        refuse_from_inside(kernel)?;
    }
    let stop = Stop {
        id: id.into(),
        level: order.level,
        reason: order.reason.into(),
        by: operator()?,
        issued_at: Timestamp::now(),
        ..Stop::drill(selector, order.level)
    };
    let report = carry_out(&stop, kernel, places);
    Ok(Receipt {
        stop: StopView::from(&stop),
        report: Some(report),
        earlier: Vec::new(),
        calls: Vec::new(),
        open: 0,
        refused: Refusals::from(&stop),
        release_asked: None,
        released: None,
    })
}

fn carry_out(stop: &Stop, kernel: Result<Offline>, places: &Places) -> Report {
    let spool = Spool::new(&places.state_dir);
    let mut report = Report { to_level: stop.level, offline: true, ..Report::default() };
    let mut concerned = Vec::new();
    if let Ok(kernel) = &kernel {
        match targets(kernel, stop, &places.state_dir) {
            Ok(found) => concerned = found,
            Err(error) => report.problems.push(format!("{error:#}")),
        }
    }
    let isolate = || -> Result<()> {
        let kernel = kernel.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?;
        if stop.selector.is_any_agent() {
            return kernel.isolate_everybody(0);
        }
        concerned.iter().try_for_each(|(_, target)| kernel.isolate(target.number, 0))
    };
    let _ = isolate();
    let left = spool.leave(stop);
    match isolate() {
        Ok(()) => report.in_force_at = Some(Timestamp::now()),
        Err(error) => report.problems.push(format!("{error:#}")),
    }
    if let Ok(kernel) = &kernel {
        report.agents = enforce(kernel, stop.level, &concerned);
    }
    let short = report
        .agents
        .iter()
        .filter_map(|effect| Some(format!("{}: {}", effect.agent, effect.error.as_ref()?)));
    report.problems.extend(short.collect::<Vec<_>>());
    report.in_force = report.problems.is_empty();
    report.in_force_at = report.in_force_at.filter(|_| report.in_force);
    report.durable = left.is_ok();
    if stop.level == Level::Refuse && report.in_force {
        report.note = Some(
            "refuse was carried out as isolate: without a daemon nobody is there to answer calls; it refuses them \
             once it is back"
                .to_owned(),
        );
    }
    match left.and_then(|()| spool.complete(stop, &report)) {
        Ok(()) => {}
        Err(error) => {
            report.problems.push(format!("the order is not saved, and a reboot will end it: {error:#}"))
        }
    }
    report
}

/// The agents that an order is for, by name, as far as any is known.
fn targets(kernel: &Offline, stop: &Stop, state_dir: &Path) -> Result<Vec<(Arc<str>, Target)>> {
    let everybody = stop.selector.is_any_agent();
    if !stop.selector.terms().label.is_empty() {
        bail!("{}: labels are known to the daemon alone; select by agent=…, or --all", stop.selector);
    }
    let names = match State::saved_agents(state_dir) {
        Ok(names) => names,
        Err(_) if everybody => BTreeMap::new(),
        Err(error) => {
            return Err(error.context(format!("who {} is cannot be told; stop --all", stop.selector)));
        }
    };
    let root = cgroup::root()?;
    let mut numbers: BTreeSet<u32> = kernel.states()?.into_keys().collect();
    let held = kernel.held_cgroups()?;
    numbers.extend(held.iter().map(|held| held.agent));
    // Known by name, and not to the kernel: it starts later.
    numbers.extend(names.values());
    let name = |number: u32| names.iter().find(|(_, known)| **known == number).map(|(name, _)| name.as_str());
    let mut targets = Vec::new();
    for number in numbers {
        let known = name(number);
        if !everybody && !known.is_some_and(|name| stop.selector.matches_agent(name)) {
            continue;
        }
        let own = held.iter().filter(|held| held.agent == number);
        let path = |dir: &Path| format!("/{}", dir.strip_prefix(&root).unwrap_or(dir).display());
        let cgroups: Vec<_> = own.map(|held| (path(&held.dir), held.dir.clone())).collect();
        if everybody && cgroups.is_empty() {
            continue;
        }
        let name = known.map_or_else(|| format!("agent number {number}"), ToOwned::to_owned);
        targets.push((name.into(), Target { number, cgroups }));
    }
    Ok(targets)
}

fn enforce(kernel: &Offline, level: Level, concerned: &[(Arc<str>, Target)]) -> Vec<Effect> {
    let one = |(name, target): &(Arc<str>, Target)| {
        let processes =
            target.cgroups.iter().map(|(_, dir)| cgroup::procs(dir).map_or(0, |procs| procs.len()));
        let mut effect = Effect {
            agent: Arc::clone(name),
            processes: processes.sum(),
            isolated: true,
            ..Effect::default()
        };
        let destroy = |dirs: &[PathBuf], numbers: &HashSet<u32>| kernel.destroy_below(dirs, numbers);
        let enforced = enforce_on(target, level, &mut effect, destroy);
        effect.error = enforced.err().map(|error| format!("{error:#}"));
        effect
    };
    let mut effects = Vec::new();
    for some in concerned.chunks(AT_A_TIME) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|target| scope.spawn(move || one(target))).collect();
            effects.extend(threads.into_iter().zip(some).map(|(thread, (name, _))| {
                thread.join().unwrap_or_else(|_| Effect {
                    agent: Arc::clone(name),
                    error: Some("panicked while it was cut".to_owned()),
                    ..Effect::default()
                })
            }));
        });
    }
    effects
}

/// As the daemon does: whoever is inside an agent's cgroup gives no orders, whatever its uid.
fn refuse_from_inside(kernel: &Offline) -> Result<()> {
    let own = cgroup::dir_of(std::process::id()).context("cannot tell who is asking")?;
    let held = kernel.held()?;
    if own.ancestors().filter_map(|dir| cgroup::id(dir).ok()).any(|id| held.contains_key(&id)) {
        bail!("orders from inside an agent's cgroup ({}) are refused", own.display());
    }
    Ok(())
}

fn operator() -> Result<Operator> {
    let (uid, pid) = (nix::unistd::getuid(), std::process::id());
    let user = nix::unistd::User::from_uid(uid).ok().flatten();
    Ok(Operator {
        uid: Some(uid.as_raw()),
        pid: i32::try_from(pid).ok(),
        user: user.map_or_else(|| uid.to_string(), |user| user.name),
        login: process::login(pid).context("read who has logged in")?,
        certificate: None,
    })
}
