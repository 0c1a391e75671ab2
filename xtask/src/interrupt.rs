//! An orderly end on Ctrl-C: whoever waits asks here, fails, and what was started is dropped on the way out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::bail;
use signal_hook::consts::{SIGINT, SIGTERM};

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From here on SIGINT and SIGTERM end the run in order instead of at once, however often they come. Children do not
/// inherit this.
pub(crate) fn catch_interrupts() -> anyhow::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, INTERRUPTED.clone())?;
    }
    Ok(())
}

/// The same, but a second one ends the run at once. To be called before [`catch_interrupts`].
pub(crate) fn end_at_second_interrupt() -> anyhow::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, INTERRUPTED.clone())?;
    }
    Ok(())
}

pub(crate) fn check_interrupted() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps, but not through an interrupt.
pub(crate) fn pause(time: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        check_interrupted()?;
        std::thread::sleep((deadline - Instant::now().min(deadline)).min(Duration::from_millis(50)));
    }
    Ok(())
}
