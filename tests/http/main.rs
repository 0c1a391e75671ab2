//! Whether others read HTTP/1.1 as we do: the same bytes for our decoders, for hyper, and for nginx as Debian has it.
//!
//! What we let through they must read as the same messages: method, target, server, content, and where the next one
//! begins. What two of them read differently we must refuse. Each exception is a row with its reason, beside
//! them, and one that is none any more is a fault, too.

mod hyper;
mod nginx;
mod ours;
#[path = "../fuzz/random.rs"]
mod random;
mod reading;
mod requests;
mod responses;
#[path = "../fuzz/streams.rs"]
mod streams;

use std::collections::BTreeSet;

use self::nginx::Nginx;
use self::random::Random;
use self::reading::{End, Reading};

/// Where somebody reads otherwise than we do, and why that harms nobody: row, who, why.
type Exception = (&'static str, &'static str, &'static str);

/// One row: what comes over the wire, and how we read it.
struct Row {
    name: &'static str,
    bytes: Vec<u8>,
    ours: Reading,
}

/// What became of all rows: the faults, and the exceptions that were met.
struct Sheet {
    exceptions: &'static [Exception],
    faults: Vec<String>,
    met: BTreeSet<(&'static str, &'static str)>,
}

impl Sheet {
    fn with(exceptions: &'static [Exception]) -> Self {
        Self { exceptions, faults: Vec::new(), met: BTreeSet::new() }
    }

    /// Someone's reading of what we let through of a row.
    fn passed(&mut self, row: &Row, who: &'static str, theirs: &Reading) {
        // Whoever gets half of a message may complain of it or wait.
        let complains = theirs.end.is_refused() && row.ours.end != End::Cut;
        if row.ours.messages != theirs.messages || complains {
            let (ours, passed) = (&row.ours, row.bytes[..row.ours.passed].escape_ascii());
            self.fault(row.name, who, &format!("of {passed}\n    ours {ours:?}\n    {who} {theirs:?}"));
        }
    }

    /// Everybody's reading of a row that we refuse: if they agree there was no need.
    fn refused(&mut self, row: &Row, theirs: &[Reading]) {
        let agree = theirs.windows(2).all(|pair| pair[0].messages == pair[1].messages);
        if agree && !theirs.iter().any(|reading| reading.end.is_refused()) {
            self.fault(row.name, "all", &format!("we refuse what all read as {:?}", theirs[0]));
        }
    }

    fn fault(&mut self, row: &'static str, who: &'static str, what: &str) {
        if self.exceptions.iter().any(|(name, whose, _)| (*name, *whose) == (row, who)) {
            self.met.insert((row, who));
        } else {
            self.faults.push(format!("{row:?}, {who}: {what}"));
        }
    }

    /// All of `who` have read all rows.
    fn end(self, who: &[&str]) {
        let unmet = self.exceptions.iter();
        let unmet = unmet.filter(|(row, whose, _)| who.contains(whose) && !self.met.contains(&(row, whose)));
        let unmet: Vec<_> = unmet.collect();
        assert!(
            self.faults.is_empty() && unmet.is_empty(),
            "{}\nno exceptions: {unmet:?}",
            self.faults.join("\n")
        );
    }
}

/// What we read is what the table says.
fn check_ours(row: &Row, expect: &Result<usize, &str>) {
    let got = match &row.ours.end {
        End::Refused(why) => Err(why.as_str()),
        End::Clean | End::Cut => Ok(row.ours.messages.len()),
    };
    assert_eq!(got, *expect, "{:?}: {:?}", row.name, row.ours);
}

fn request_rows() -> Vec<Row> {
    let row = |(name, bytes, expect): (_, Vec<u8>, _)| {
        let row = Row { name, ours: ours::requests(&bytes), bytes };
        check_ours(&row, &expect);
        row
    };
    requests::corpus().into_iter().map(row).collect()
}

fn response_rows() -> Vec<(&'static str, Row)> {
    let row = |(name, method, bytes, expect): (_, _, Vec<u8>, _)| {
        let row = Row { name, ours: ours::responses(method, &bytes), bytes };
        check_ours(&row, &expect);
        (method, row)
    };
    responses::corpus().into_iter().map(row).collect()
}

#[test]
fn hyper_reads_the_requests_that_pass_as_we_do() {
    let (rows, mut sheet) = (request_rows(), Sheet::with(requests::EXCEPTIONS));
    for row in &rows {
        sheet.passed(row, "hyper", &hyper::requests(&row.bytes[..row.ours.passed]));
    }
    sheet.end(&["hyper"]);
}

#[test]
fn hyper_reads_the_responses_that_pass_as_we_do() {
    let (rows, mut sheet) = (response_rows(), Sheet::with(responses::EXCEPTIONS));
    for (method, row) in &rows {
        sheet.passed(row, "hyper", &hyper::responses(method, &row.bytes[..row.ours.passed], &row.ours));
    }
    sheet.end(&["hyper"]);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs nginx")]
fn nginx_reads_the_requests_that_pass_as_we_do() {
    let (nginx, rows, mut sheet) = (Nginx::start(), request_rows(), Sheet::with(requests::EXCEPTIONS));
    for row in &rows {
        sheet.passed(row, "nginx", &nginx.requests(&row.bytes[..row.ours.passed]));
        if row.ours.end.is_refused() {
            sheet.refused(row, &[hyper::requests(&row.bytes), nginx.requests(&row.bytes)]);
        }
    }
    sheet.end(&["nginx", "all"]);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs nginx")]
fn nginx_reads_the_responses_that_pass_as_we_do() {
    let (nginx, rows, mut sheet) = (Nginx::start(), response_rows(), Sheet::with(responses::EXCEPTIONS));
    for (method, row) in &rows {
        // It asks for one at a time.
        let first = row.ours.first();
        let one = Row { name: row.name, bytes: row.bytes[..first.passed].to_vec(), ours: first };
        if one.ours.passed > 0 {
            sheet.passed(&one, "nginx", &nginx.response(method, &one.bytes));
        } else {
            sheet.refused(
                row,
                &[hyper::responses(method, &row.bytes, &row.ours), nginx.response(method, &row.bytes)],
            );
        }
    }
    sheet.end(&["nginx", "all"]);
}

/// Far more than the corpora have, in two seconds.
const STREAMS: usize = 20_000;

/// Someone reads random streams: what passes as we do, or not at all.
fn agrees_at_random(
    made: impl Fn(&mut Random) -> String,
    ours: impl Fn(&[u8]) -> Reading,
    theirs: impl Fn(&[u8], &Reading) -> Reading,
) {
    let (mut random, mut read) = (Random::new(0x9e37_79b9_7f4a_7c15), 0);
    for _ in 0..STREAMS {
        let text = made(&mut random);
        let ours = ours(text.as_bytes());
        if ours.messages.is_empty() {
            continue;
        }
        let passed = &text.as_bytes()[..ours.passed];
        let theirs = theirs(passed, &ours);
        let seen = theirs.messages.len();
        let is_same = ours.messages.get(..seen) == Some(&theirs.messages[..])
            && (seen == ours.messages.len() || theirs.end != End::Clean);
        assert!(is_same, "of {}\n    ours {ours:?}\n    theirs {theirs:?}", passed.escape_ascii());
        read += seen;
    }
    assert!(read > STREAMS / 10, "only {read} messages were read");
}

#[test]
fn hyper_reads_random_requests_that_pass_as_we_do() {
    agrees_at_random(streams::requests, ours::requests, |bytes, _| hyper::requests(bytes));
}

#[test]
fn hyper_reads_random_responses_that_pass_as_we_do() {
    let ours = |bytes: &[u8]| ours::responses("GET", bytes);
    agrees_at_random(streams::responses, ours, |bytes, ours| hyper::responses("GET", bytes, ours));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs nginx")]
fn nginx_reads_random_requests_that_pass_as_we_do() {
    let nginx = Nginx::start();
    agrees_at_random(streams::requests, ours::requests, |bytes, _| nginx.requests(bytes));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs nginx")]
fn nginx_reads_random_responses_that_pass_as_we_do() {
    let nginx = Nginx::start();
    // One at a time, and none that it takes for the last answer though it is not (`responses::EXCEPTIONS`).
    let interim = |bytes: &[u8]| bytes.get(9..11) == Some(b"10");
    let ours = |bytes: &[u8]| {
        let whole = ours::responses("GET", bytes);
        if interim(bytes) { Reading::new(Vec::new(), End::Clean) } else { whole.first() }
    };
    agrees_at_random(streams::responses, ours, |bytes, _| nginx.response("GET", bytes));
}
