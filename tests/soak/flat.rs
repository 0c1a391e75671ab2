//! Samples of the daemon's memory and open files, and whether they are flat.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use agent_tests::Daemon;

use crate::Run;

/// How many samples there are.
const SAMPLES: u32 = 200;
/// Into how many parts they fall: the first is for warming up.
const PARTS: usize = 5;
/// By how much the last may be over the second: an eighth, and what one large message more or less makes.
const GROWTH: u64 = 8;
const SWING_KIB: u64 = 8 << 10;
/// Connections that are open at one moment and not at another, and with each two files.
const SWING_FILES: u64 = 24;

pub(crate) struct Samples {
    resident_kib: Vec<u64>,
    files: Vec<u64>,
}

impl Samples {
    /// Takes them until the run is over.
    pub(crate) fn take(daemon: &mut Daemon, run: &Run, lasts: Duration) -> Self {
        let mut samples = Self { resident_kib: Vec::new(), files: Vec::new() };
        let begun = Instant::now();
        for number in 1.. {
            let process = daemon.process();
            assert!(process.is_running(), "{}", process.stderr());
            samples.resident_kib.push(process.resident_kib());
            samples.files.push(u64::try_from(process.files()).expect("a number of files"));
            if !run.goes_on() {
                break;
            }
            let next = begun + lasts * number / SAMPLES;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        samples
    }

    /// Fails where they are not flat.
    pub(crate) fn check(&self) {
        let (before, after) = (median(&self.resident_kib, 1), median(&self.resident_kib, PARTS - 1));
        assert!(after <= before + before / GROWTH + SWING_KIB, "memory grows: {before} KiB, then {after}");
        let (before, after) = (median(&self.files, 1), median(&self.files, PARTS - 1));
        assert!(after <= before + SWING_FILES, "open files grow: {before}, then {after}");
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let medians =
            |samples: &[u64]| -> Vec<u64> { (0..PARTS).map(|part| median(samples, part)).collect() };
        let most = self.resident_kib.iter().max().copied().unwrap_or_default();
        writeln!(
            f,
            "soak: resident KiB, median of each fifth: {:?}, {most} at most",
            medians(&self.resident_kib)
        )?;
        write!(f, "soak: open files, median of each fifth: {:?}", medians(&self.files))
    }
}

/// The median of one part of the samples.
fn median(samples: &[u64], part: usize) -> u64 {
    let mut part = samples[samples.len() * part / PARTS..samples.len() * (part + 1) / PARTS].to_vec();
    part.sort_unstable();
    part.get(part.len() / 2).copied().unwrap_or_default()
}
