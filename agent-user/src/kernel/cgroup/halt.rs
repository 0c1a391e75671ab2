//! Freezing and killing whole cgroups. The kernel does both for everything below as well, and for processes that are
//! forked meanwhile: there is no list of processes to be late with.
//!
//! Both are orders that take a moment; [`wait`] says when they are carried out.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The file of a cgroup that tells of [`Events`], and is reported as modified when they change.
pub const EVENTS: &str = "cgroup.events";

/// The state of a cgroup and of all below it, from [`EVENTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// A process is inside, be it a dead one that nobody has waited for.
    pub populated: bool,
    /// Every process inside has stopped. A cgroup with none, too. The kernel's own word for a cgroup leaves out what
    /// is below it as long as that is still stopping (seen on 6.18), so this is the word of each of them.
    pub frozen: bool,
}

/// Stops every process of a cgroup and below it, or lets them go on (Linux 5.2). A frozen process runs no code until
/// then, but can be killed; the kernel goes on with its sockets. What was frozen further up or down stays frozen.
///
/// # Errors
/// The cgroup is gone ([`super::is_gone`]), is the root, or holds this very process.
pub fn set_frozen(dir: &Path, frozen: bool) -> anyhow::Result<()> {
    let verb = if frozen { "freeze" } else { "thaw" };
    if frozen {
        ensure_not_ours(dir, verb)?;
    }
    order(&dir.join("cgroup.freeze"), if frozen { "1" } else { "0" })
        .with_context(|| format!("{verb} cgroup {} (cgroup.freeze needs root and Linux 5.2)", dir.display()))
}

/// Kills every process of a cgroup and below it, also frozen ones and those that are being forked (Linux 5.14).
///
/// # Errors
/// As for [`set_frozen`]. A threaded cgroup cannot be killed by itself; its nearest domain cgroup can.
pub fn kill(dir: &Path) -> anyhow::Result<()> {
    ensure_not_ours(dir, "kill")?;
    order(&dir.join("cgroup.kill"), "1").map_err(|error| {
        let remedy = if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
            "it is threaded: kill the domain cgroup above it"
        } else {
            "cgroup.kill needs root and Linux 5.14"
        };
        anyhow::Error::new(error).context(format!("kill cgroup {} ({remedy})", dir.display()))
    })
}

/// How a cgroup and all below it are now.
///
/// # Errors
/// The cgroup is gone ([`super::is_gone`]), or is the root, which has no events.
pub fn events(dir: &Path) -> anyhow::Result<Events> {
    let path = dir.join(EVENTS);
    let (events, _) = look(dir).with_context(|| format!("read {}", path.display()))?;
    Ok(events)
}

/// Waits until `wanted` holds, or for this long, and returns the state as it was last: whoever asked looks at it
/// again. Sleeps until the kernel reports a change. A cgroup that is gone holds nobody and is not frozen. Blocks the
/// thread.
pub fn wait(dir: &Path, within: Duration, wanted: impl Fn(Events) -> bool) -> anyhow::Result<Events> {
    let subject = || format!("watch {}/cgroup.events", dir.display());
    let deadline = Instant::now() + within;
    loop {
        let (events, file) = match look(dir) {
            Err(error) if is_gone(&error) => return Ok(Events::default()),
            seen => seen.with_context(subject)?,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if wanted(events) || left.is_zero() {
            return Ok(events);
        }
        poll(&file, left.min(LOOK_AGAIN)).with_context(subject)?;
    }
}

/// The state, and the file whose change is the next one to wait for. That the file was read is what makes a poll wait
/// for what comes after it.
fn look(dir: &Path) -> io::Result<(Events, File)> {
    let (events, file) = read(dir)?;
    if events.frozen {
        for below in super::subtree(dir).unwrap_or_default().iter().skip(1) {
            // One that is gone holds nobody.
            if let Ok((Events { frozen: false, .. }, file)) = read(below) {
                return Ok((Events { frozen: false, ..events }, file));
            }
        }
    }
    Ok((events, file))
}

/// What the kernel says of one cgroup.
fn read(dir: &Path) -> io::Result<(Events, File)> {
    let file = File::open(dir.join(EVENTS))?;
    let mut text = [0; 256];
    let length = file.read_at(&mut text, 0)?;
    Ok((parse(&String::from_utf8_lossy(&text[..length])), file))
}

/// A cgroup that goes while it is watched is not reported by every kernel.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Waits for a change of a kernfs file since it was last read.
fn poll(file: &File, within: Duration) -> io::Result<()> {
    // Rounded up: less than a millisecond must not become a busy loop.
    let timeout = i32::try_from(within.as_millis()).unwrap_or(i32::MAX - 1) + 1;
    let mut entry = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
    // SAFETY: one valid entry, which outlives the call.
    match unsafe { libc::poll(&raw mut entry, 1, timeout) } {
        -1 => Err(io::Error::last_os_error()).or_else(|error| match error.kind() {
            ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        }),
        _ => Ok(()),
    }
}

/// Nobody who is frozen thaws anybody.
fn ensure_not_ours(dir: &Path, verb: &str) -> anyhow::Result<()> {
    let id = super::id(dir)?;
    if id == super::ROOT_ID {
        bail!("{verb} cgroup {}: it is the root, which holds the whole host", dir.display());
    }
    let own = super::dir_of(std::process::id())?;
    if own.ancestors().any(|above| super::id(above).is_ok_and(|above| above == id)) {
        bail!(
            "{verb} cgroup {}: this process is inside, in {} (start interlock in a cgroup of its own)",
            dir.display(),
            own.display()
        );
    }
    Ok(())
}

// Not `fs::write`: without the flag to create, a missing file says so.
fn order(path: &Path, word: &str) -> io::Result<()> {
    use std::io::Write as _;
    fs::OpenOptions::new().write(true).open(path)?.write_all(word.as_bytes())
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

fn parse(text: &str) -> Events {
    let is = |wanted: &str| text.lines().any(|line| line == wanted);
    Events { populated: is("populated 1"), frozen: is("frozen 1") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_by_their_lines() {
        assert_eq!(parse("populated 1\nfrozen 0\n"), Events { populated: true, frozen: false });
        assert_eq!(parse("populated 0\nfrozen 1\nlater 1\n"), Events { populated: false, frozen: true });
        assert_eq!(parse(""), Events::default());
    }

    #[test]
    fn cgroup_that_is_not_there_is_gone_for_orders_and_empty_for_waiting() {
        let dir = Path::new("/nowhere/cgroup");
        for error in [
            set_frozen(dir, true).expect_err("gone"),
            kill(dir).expect_err("gone"),
            events(dir).expect_err("gone"),
        ] {
            assert!(super::super::is_gone(&error), "{error:#}");
            assert!(error.to_string().contains("/nowhere/cgroup"), "{error:#}");
        }
        let events = wait(dir, Duration::from_secs(5), |events| !events.populated).expect("no wait");
        assert_eq!(events, Events::default());
    }
}
