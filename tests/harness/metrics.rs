//! The daemon's metrics, as Prometheus scrapes them.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::wait::wait_for;

/// The metrics endpoint of one daemon.
pub struct Metrics {
    address: SocketAddr,
}

impl Default for Metrics {
    /// Nobody's, until the daemon has said where it listens.
    fn default() -> Self {
        Self { address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) }
    }
}

impl Metrics {
    /// The endpoint at this address.
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// The text of one scrape.
    pub fn scrape(&self) -> String {
        let mut stream = TcpStream::connect(self.address).expect("connect to the metrics");
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .expect("ask for metrics");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("read the metrics");
        text
    }

    /// The sum of the samples of `name` that carry all these labels; 0 when there is none.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        sum(&self.scrape(), name, labels)
    }

    /// Waits until the sum of those samples is at least `least`.
    pub fn wait(&self, name: &str, labels: &[(&str, &str)], least: f64) -> f64 {
        wait_for(&format!("{name} {labels:?} ≥ {least}"), || {
            Some(self.value(name, labels)).filter(|&value| value >= least)
        })
    }
}

/// The sum of the samples of `name` in a scrape that carry all these labels; 0 when there is none.
pub fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let carries = |sample: &str| {
        let rest = sample.strip_prefix(name)?;
        let (given, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let all = labels
            .iter()
            .all(|(label, value)| format!(",{given},").contains(&format!(",{label}=\"{value}\",")));
        if all { value.trim().parse::<f64>().ok() } else { None }
    };
    text.lines().filter_map(carries).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_with_the_labels_are_summed() {
        let text =
            "# HELP a x\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"3\"} 4\na{x=\"2\"} 5\nab{x=\"1\"} 6\nb 7\n";
        assert_eq!(sum(text, "a", &[("x", "1")]), 7.0);
        assert_eq!(sum(text, "a", &[("x", "1"), ("y", "3")]), 4.0);
        assert_eq!(sum(text, "a", &[]), 12.0);
        assert_eq!(sum(text, "b", &[]), 7.0);
    }
}
