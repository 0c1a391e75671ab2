//! What a daemon tells Prometheus, read as Prometheus reads it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context;

/// The answer of `/metrics`, head included.
pub(crate) fn scrape(metrics: SocketAddr) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(metrics).context("connect to the metrics address")?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: interlock\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Sum of a metric over all its series in which `label` occurs, such as `level="isolate"`.
pub(crate) fn sum_metric(text: &str, name: &str, label: &str) -> f64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let values = lines.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
    values.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_is_summed_over_labels_and_not_over_longer_names() {
        let text = "# TYPE a_total counter\na_total{x=\"1 2\"} 3\na_total{x=\"b\"} 4\na_total_more 50\nb 9\n";
        assert_eq!((sum_metric(text, "a_total", ""), sum_metric(text, "b", "")), (7.0, 9.0));
        assert_eq!(sum_metric(text, "a_total", "x=\"b\""), 4.0);
    }
}
