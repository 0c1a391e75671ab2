//! The rules of this repository that no compiler checks, as code. A breach is a line `file:line: what (remedy)`.
//! Part of `cargo xtask check`.

mod source;

use std::fs;
use std::process::Command;

use anyhow::{Context, bail};

use self::source::Source;

/// A rule that does not hold at a line of a file.
#[derive(Debug, PartialEq, Eq)]
struct Breach {
    line: usize,
    what: String,
    remedy: &'static str,
    /// Shown, but not a failure.
    warning: bool,
}

pub(crate) fn run() -> anyhow::Result<()> {
    let files = tracked_files()?;
    let mut failures = 0;
    let mut show = |path: &str, breaches: Vec<Breach>| {
        for Breach { line, what, remedy, warning } in breaches {
            let kind = if warning { "warning: " } else { "" };
            println!("{path}:{line}: {kind}{what} ({remedy})");
            failures += usize::from(!warning);
        }
    };
    show(".", check_top_level(&files));
    for path in &files {
        let bytes = fs::read(crate::root().join(path)).with_context(|| format!("read {path}"))?;
        // What is not text is data of a test; nobody reads it by line.
        if let Ok(text) = String::from_utf8(bytes) {
            show(path, check_file(path, &text));
        }
    }
    if failures > 0 {
        bail!("tidy: {failures} breaches of the rules of this repository");
    }
    println!("tidy: {} files keep the rules", files.len());
    Ok(())
}

/// What git tracks, and what it would track if it were added: nobody should learn of a breach only after committing.
fn tracked_files() -> anyhow::Result<Vec<String>> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output =
        Command::new("git").args(list).current_dir(crate::root()).output().context("run git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = String::from_utf8(output.stdout).context("a file name that is not UTF-8")?;
    let mut files: Vec<String> = names.split_terminator('\0').map(str::to_owned).collect();
    files.retain(|path| crate::root().join(path).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

fn check_top_level(files: &[String]) -> Vec<Breach> {
    let mut found: Vec<&str> = files.iter().filter_map(|path| path.split('/').next()).collect();
    found.retain(|name| !name.starts_with('.'));
    found.dedup();
    let breach = |what| Breach { line: 0, what, remedy: "the visible top level is fixed", warning: false };
    let extra = found.iter().filter(|name| !TOP_LEVEL.contains(name));
    let extra = extra.map(|name| breach(format!("`{name}` does not belong at the top")));
    let missing = TOP_LEVEL.iter().filter(|name| !found.contains(name));
    extra.chain(missing.map(|name| breach(format!("`{name}` is missing")))).collect()
}

fn check_file(path: &str, text: &str) -> Vec<Breach> {
    let mut breaches = Vec::new();
    if !path.ends_with(".lock") {
        check_text(path, text, &mut breaches);
    }
    if path.ends_with(".rs") {
        check_rust(path, &Source::read(text), &mut breaches);
    }
    breaches
}

fn check_text(path: &str, text: &str, breaches: &mut Vec<Breach>) {
    // Recorded frames are kept as they came.
    let recorded = path.starts_with("tests/data/");
    for (index, line) in text.lines().enumerate() {
        let mut report =
            |what: String, remedy| breaches.push(Breach { line: index + 1, what, remedy, warning: false });
        if !recorded && line.ends_with([' ', '\t', '\r']) {
            report("white space at the end of the line".to_owned(), "remove it");
        }
        for host in foreign_hosts(line).filter(|_| !recorded) {
            report(format!("names the host {host}"), "use what the machine is configured with");
        }
        for place in PLACES {
            if find_path(line, place) {
                report(format!("names a path of one machine, {place}"), "derive it or make it a parameter");
            }
        }
    }
}

fn check_rust(path: &str, source: &Source, breaches: &mut Vec<Breach>) {
    let mut report = |line: usize, what: String, remedy: &'static str| {
        breaches.push(Breach { line, what, remedy, warning: false });
    };
    let opening = if path.ends_with("build.rs") { "//" } else { "//!" };
    if !source.raw.first().is_some_and(|line| line.starts_with(opening)) {
        report(1, format!("does not begin with `{opening}`"), "say what the file is and what it must not do");
    }
    let in_user = |place: &str| {
        path.starts_with("agent-user/src/") && path["agent-user/src/".len()..].starts_with(place)
    };
    let kernel_side = KERNEL_SIDE.iter().any(|place| path.starts_with(place));
    for (index, code) in source.code.iter().enumerate() {
        let number = index + 1;
        if ["decode/", "decide/", "fingerprint/"].into_iter().any(in_user) {
            for word in IO.iter().filter(|_| index < source.tests_from) {
                if find_word(code, word).is_some() {
                    report(
                        number,
                        format!("`{word}` in decode/, decide/ or fingerprint/"),
                        "they do no IO: let the caller pass it in",
                    );
                }
            }
        }
        if in_user("") && !in_user("kernel/") && !in_user("main.rs") && find_word(code, "aya").is_some() {
            report(number, "`aya` outside of kernel/".to_owned(), "go through kernel/");
        }
        if in_user("") && !in_user("record/metrics.rs") && find_word(code, "prometheus").is_some() {
            report(number, "`prometheus` outside of record/metrics.rs".to_owned(), "add a method to Metrics");
        }
        if let Some(column) =
            find_word(code, "unsafe").filter(|at| !code[at + "unsafe".len()..].starts_with('('))
        {
            if !kernel_side {
                report(
                    number,
                    "`unsafe` outside of kernel code".to_owned(),
                    "use nix, or move it into kernel/",
                );
            } else if !source.says_why_safe(index) && !code[column..].starts_with("unsafe extern") {
                report(number, "`unsafe` without `// SAFETY:`".to_owned(), "say above it why it is sound");
            }
        }
        if lacks_ignore_reason(code) {
            report(number, "`ignore` without a reason".to_owned(), "write #[ignore = \"what it needs\"]");
        }
    }
    let length = source.tests_from;
    if length > WARN_LINES {
        let what = format!("{length} lines without tests; the bound is {MAX_LINES}");
        breaches.push(Breach {
            line: length,
            what,
            remedy: "split it by idea",
            warning: length <= MAX_LINES,
        });
    }
}

/// `#[ignore]`, also inside `cfg_attr`.
fn lacks_ignore_reason(code: &str) -> bool {
    code.trim_start().starts_with("#[")
        && find_word(code, "ignore")
            .is_some_and(|at| code[at + "ignore".len()..].trim_start().starts_with([']', ')', ',']))
}

/// Where `word` stands in `text` as a whole word, not as a part of one.
fn find_word(text: &str, word: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .map(|(at, _)| at)
        .find(|&at| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// Whether an absolute path stands in `text` and is not the tail of a longer one.
fn find_path(text: &str, path: &str) -> bool {
    let goes_before = |c: char| c.is_alphanumeric() || "._-}~*)/".contains(c);
    text.match_indices(path).any(|(at, _)| !text[..at].ends_with(goes_before))
}

/// Hosts of URLs that are neither this machine nor a name that can be no host of the Internet (RFC 6761, RFC 6762, and names
/// without a dot): where packages come from is each machine's own affair.
fn foreign_hosts(line: &str) -> impl Iterator<Item = &str> {
    line.split("://").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".-".contains(c))).unwrap_or(rest.len());
        let host = &rest[..end];
        let known =
            [".test", ".local", ".internal", ".example", ".invalid"].iter().any(|tld| host.ends_with(tld))
                || host.starts_with("127.")
                || host.starts_with("10.")
                || host == LICENCE_HOST
                || !host.contains('.');
        (!known).then_some(host)
    })
}

const TOP_LEVEL: [&str; 9] = [
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "agent-ebpf",
    "agent-user",
    "deploy",
    "tests",
    "xtask",
];
const IO: [&str; 7] = ["tokio", "aya", "prometheus", "std::fs", "std::net", "Instant::now", "SystemTime"];
/// Where `unsafe` is allowed: the kernel side, its only user, and the test programs that make raw system calls at it.
const KERNEL_SIDE: [&str; 5] =
    ["agent-ebpf/", "agent-user/src/kernel/", "tests/kernel/", "tests/probe/", "tests/harness/netns.rs"];
const WARN_LINES: usize = 300;
const MAX_LINES: usize = 500;
/// The licence names its own home.
const LICENCE_HOST: &str = "www.apache.org";
const PLACES: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/tmp/", "wt")];

#[cfg(test)]
mod tests {
    use super::*;

    /// Line and beginning of each failure.
    fn check(path: &str, text: &str) -> Vec<(usize, String)> {
        let failures = check_file(path, text).into_iter().filter(|breach| !breach.warning);
        failures.map(|breach| (breach.line, breach.what)).collect()
    }

    fn fails(path: &str, text: &str, line: usize, what: &str) {
        let found = check(path, text);
        assert!(found.len() == 1 && found[0].0 == line && found[0].1.contains(what), "{path}: {found:?}");
    }

    #[test]
    fn decode_and_decide_do_no_io() {
        fails("agent-user/src/decode/http1.rs", "//! x\nuse tokio::io;\n", 2, "tokio");
        fails(
            "agent-user/src/decide/mod.rs",
            "//! x\nfn f() { std::time::Instant::now(); }\n",
            2,
            "Instant::now",
        );
        let only_in_tests = "//! tokio\nfn f() {} // tokio\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert_eq!(check("agent-user/src/decode/http1.rs", only_in_tests), []);
        assert_eq!(check("agent-user/src/forward/dial.rs", "//! x\nuse tokio::io;\n"), []);
    }

    #[test]
    fn only_their_places_use_aya_and_prometheus() {
        fails("agent-user/src/app.rs", "//! x\nuse aya::Ebpf;\n", 2, "aya");
        fails("agent-user/src/app.rs", "//! x\nuse prometheus::Counter;\n", 2, "prometheus");
        assert_eq!(check("agent-user/src/kernel/load.rs", "//! x\nuse aya::Ebpf;\n"), []);
        assert_eq!(check("agent-user/src/record/metrics.rs", "//! x\nuse prometheus::Counter;\n"), []);
        assert_eq!(check("agent-user/src/app.rs", "//! x\nfn f() { \"aya\"; playa(); }\n"), []);
    }

    #[test]
    fn unsafe_is_kernel_code_and_says_why() {
        fails("agent-user/src/app.rs", "//! x\nfn f() { unsafe { g() } }\n", 2, "outside");
        fails("agent-ebpf/src/main.rs", "//! x\n\n\n\n\nfn f() { unsafe { g() } }\n", 6, "SAFETY");
        let sound =
            "//! x\n// SAFETY: it is.\nfn f() { unsafe { g() } }\n#[unsafe(no_mangle)]\nstatic A: u8 = 0;\n";
        assert_eq!(check("agent-ebpf/src/main.rs", sound), []);
        assert_eq!(check("agent-user/src/lib.rs", "//! x\n#![deny(unsafe_code)]\n"), []);
    }

    #[test]
    fn every_file_says_what_it_is() {
        fails("xtask/src/new.rs", "use std::fs;\n", 1, "//!");
        fails("xtask/src/new.rs", "", 1, "//!");
        assert_eq!(check("agent-user/build.rs", "// Builds.\nfn main() {}\n"), []);
    }

    #[test]
    fn hosts_and_machine_paths_stay_out() {
        let url = |host: &str| format!("a: b\nurl: https://{host}/simple\n");
        fails("deploy/a.yaml", &url(concat!("packages.else", "where.org")), 2, "where.org");
        assert_eq!(check("deploy/a.yaml", &url("bank.internal")), []);
        fails("README.md", &format!("see {}x\n", PLACES[0]), 1, PLACES[0]);
        assert_eq!(check("README.md", &format!("net{}x ${{A}}{}\n", PLACES[0], PLACES[1])), []);
    }

    #[test]
    fn lines_end_where_they_end() {
        fails("README.md", "a\nb \n", 2, "white space");
        assert_eq!(check("tests/data/a.http", "GET / HTTP/1.1\r\n"), []);
    }

    #[test]
    fn ignored_tests_say_why() {
        fails("tests/a.rs", "//! x\n#[ignore]\n", 2, "ignore");
        fails("tests/a.rs", "//! x\n#[cfg_attr(not(feature = \"root-tests\"), ignore)]\n", 2, "ignore");
        assert_eq!(check("tests/a.rs", "//! x\n#[ignore = \"needs root\"]\n"), []);
        assert_eq!(check("tests/a.rs", "//! x\n#[cfg_attr(not(a), ignore = \"needs root\")]\n"), []);
    }

    #[test]
    fn long_files_are_named_and_too_long_ones_fail() {
        let of = |lines: usize| {
            format!("//! x\n{}#[cfg(test)]\nmod tests {{}}\n", "fn f() {}\n".repeat(lines - 1))
        };
        assert_eq!(check_file("xtask/src/a.rs", &of(300)), []);
        assert!(check_file("xtask/src/a.rs", &of(301))[0].warning);
        fails("xtask/src/a.rs", &of(501), 501, "501 lines");
    }

    #[test]
    fn top_level_is_exact() {
        let full: Vec<String> = TOP_LEVEL.iter().map(|name| format!("{name}/x")).collect();
        assert_eq!(check_top_level(&full), []);
        let with_more: Vec<String> =
            full.iter().cloned().chain(["scripts/a".into(), ".ci/run".into()]).collect();
        assert_eq!(check_top_level(&with_more).len(), 1);
        assert_eq!(check_top_level(&full[1..]).len(), 1);
    }
}
