//! What a package says of itself: who made it, from which commit, when, and what is linked into its program.

use std::collections::BTreeSet;
use std::env;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::shell;

/// The one time of every file: `SOURCE_DATE_EPOCH`, or that of the commit.
pub(super) fn time() -> anyhow::Result<i64> {
    let time = match env::var("SOURCE_DATE_EPOCH") {
        Ok(time) => time,
        Err(_) => git(&["log", "-1", "--format=%ct"])
            .context("no commit to take the time of (set SOURCE_DATE_EPOCH)")?,
    };
    time.parse().with_context(|| format!("SOURCE_DATE_EPOCH: {time}"))
}

/// Who answers for this package, as Debian's tools are told: `DEBFULLNAME` and `DEBEMAIL`.
pub(super) fn maintainer() -> Option<String> {
    let mail = env::var("DEBEMAIL").ok()?;
    Some(if mail.contains('<') {
        mail
    } else {
        format!("{} <{mail}>", env::var("DEBFULLNAME").unwrap_or_else(|_| "interlock maintainers".into()))
    })
}

pub(super) fn with_maintainer(control: &str, maintainer: Option<&str>) -> String {
    let lines = control.lines().map(|line| match maintainer {
        Some(name) if line.starts_with("Maintainer: ") => format!("Maintainer: {name}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// One entry, in the format of Debian's changelogs.
pub(super) fn changelog(
    control: &str,
    version: &str,
    time: i64,
    maintainer: Option<&str>,
) -> anyhow::Result<String> {
    let given = control.lines().find_map(|line| line.strip_prefix("Maintainer: "));
    let maintainer = maintainer.or(given).context("control names no maintainer")?;
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=12"]);
    let what = commit.map_or("Packed without its history.".into(), |commit| format!("Of commit {commit}."));
    let date = jiff::Timestamp::from_second(time)?.strftime("%a, %d %b %Y %H:%M:%S +0000");
    Ok(format!("interlock ({version}) unstable; urgency=medium\n\n  * {what}\n\n -- {maintainer}  {date}\n"))
}

/// Every crate in the program and in its kernel object, with its licence.
pub(super) fn crates() -> anyhow::Result<String> {
    let mut crates = BTreeSet::new();
    for whose in [&["agent-user"][..], &["agent-ebpf", "--target=bpfel-unknown-none"]] {
        let mut cargo =
            shell::cargo(&["tree", "--locked", "--edges=normal", "--prefix=none", "--format={p}: {l}"]);
        let output = cargo.arg("--package").args(whose).output().context("run cargo tree")?;
        ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim());
        let text = String::from_utf8(output.stdout).context("cargo tree: no UTF-8")?;
        // Macros are not linked; what has a path is our own; what was shown before has a mark.
        let linked = text.lines().filter(|line| !line.contains("(proc-macro)") && !line.contains("(/"));
        crates.extend(linked.map(|line| line.trim_end_matches(" (*)").to_owned()));
    }
    Ok(crates.into_iter().map(|line| format!("  {line}\n")).collect())
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).current_dir(crate::root()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
