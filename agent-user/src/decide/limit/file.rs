//! A limit as the rules file has it.

use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Kind, Limit, Per};

/// With `action: limit`: how much of what the rule matches is let through. Exactly one of `calls`, `concurrent` and
/// `bytes`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitFile {
    /// Messages that are let through `within` a time.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub calls: Option<u64>,
    /// Calls that are in flight at a time.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub concurrent: Option<u64>,
    /// Bytes of JSON, such as `10MiB`, of the messages that are let through and of their answers `within` a time. How
    /// long an answer is shows only once it is there: it is let through, and what it takes too much is missing to
    /// those after it.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub bytes: Option<ByteSize>,
    /// With `calls` and `bytes`: the time, such as `60s`, up to `744h`. It moves along: in no span of this length is more let
    /// through, wherever it begins. What was counted may go on counting for a 60th of it longer.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub within: Option<SignedDuration>,
    /// What is counted apart: `agent` where it is left out. Without `agent` in it all agents share a count.
    #[serde(default)]
    pub per: OneOrMore<Per>,
}

/// One value or a list of them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    fn values(&self) -> &[T] {
        match self {
            OneOrMore::One(value) => std::slice::from_ref(value),
            OneOrMore::More(values) => values,
        }
    }
}

impl Default for OneOrMore<Per> {
    fn default() -> Self {
        OneOrMore::One(Per::Agent)
    }
}

const MAX_CALLS: u64 = 1_000_000_000;
const MAX_CONCURRENT: u64 = 1_000_000;
const MAX_WITHIN: Duration = Duration::from_secs(31 * 24 * 60 * 60);

impl LimitFile {
    /// The limit of the rule with this id.
    ///
    /// # Errors
    /// Name the field and the remedy.
    pub fn compile(&self, rule: &Arc<str>) -> Result<Limit, String> {
        let kind = match (self.calls, self.concurrent, self.bytes) {
            (Some(calls), None, None) => {
                Kind::Calls { max: check_range("calls", calls, MAX_CALLS)?, within: self.within()? }
            }
            (None, Some(concurrent), None) => {
                if self.within.is_some() {
                    return Err(
                        "limit.within: leave it out, `concurrent` counts what is in flight now".into()
                    );
                }
                Kind::Concurrent { max: check_range("concurrent", concurrent, MAX_CONCURRENT)? }
            }
            (None, None, Some(bytes)) => Kind::Bytes {
                max: check_range("bytes", bytes.as_u64(), i64::MAX as u64)?,
                within: self.within()?,
            },
            _ => return Err("limit: give exactly one of `calls`, `concurrent` and `bytes`".into()),
        };
        let mut per = self.per.values().to_vec();
        per.sort_unstable();
        if per.is_empty() {
            return Err("limit.per: is empty; leave it out to count for each agent".into());
        }
        if let Some(pair) = per.array_windows().find(|[first, second]| first == second) {
            return Err(format!("limit.per: `{}` is there twice; give it once", pair[0].label()));
        }
        Ok(Limit::new(Arc::clone(rule), kind, per))
    }

    fn within(&self) -> Result<Duration, String> {
        let Some(within) = self.within else {
            return Err("limit.within: is missing; give the time that is counted over, such as 60s".into());
        };
        let usable = Duration::try_from(within).ok().filter(|time| !time.is_zero() && *time <= MAX_WITHIN);
        usable.ok_or_else(|| {
            format!("limit.within: {within:#}: give more than nothing and no more than 31 days (744h)")
        })
    }
}

fn check_range(field: &str, value: u64, max: u64) -> Result<u64, String> {
    match value {
        0 => {
            Err(format!("limit.{field}: 0: give at least 1; a rule with `action: deny` lets nothing through"))
        }
        value if value > max => Err(format!("limit.{field}: {value}: give 1 to {max}")),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(yaml: &str) -> Result<Limit, String> {
        let file: LimitFile = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
        file.compile(&"r".into())
    }

    #[test]
    fn limits_are_read() {
        let check = |yaml: &str, text: &str| assert_eq!(compile(yaml).unwrap().to_string(), text, "{yaml}");
        check("{calls: 100, within: 60s, per: [tool, agent]}", "100 calls within 1m for each agent and tool");
        check("{calls: 1, within: 744h}", "1 call within 744h for each agent");
        check("{concurrent: 4, per: agent}", "4 calls at a time for each agent");
        check(
            "{bytes: 10MiB, within: 1h, per: [server, workflow, session]}",
            "10.0 MiB within 1h for each session, workflow and server",
        );
    }

    #[test]
    fn its_shape_is_told() {
        let schema = serde_json::to_string(&schemars::schema_for!(LimitFile)).unwrap();
        for part in ["calls", "concurrent", "bytes", "within", "workflow", "for a 60th of it longer"] {
            assert!(schema.contains(part), "{part}: {schema}");
        }
    }

    #[test]
    fn mistakes_are_named_with_their_remedy() {
        let check = |yaml: &str, expect: &str| {
            let error = compile(yaml).unwrap_err();
            assert!(error.contains(expect), "{yaml}: {error}");
        };
        check("{}", "exactly one of");
        check("{within: 60s}", "exactly one of");
        check("{calls: 1, bytes: 1KiB, within: 60s}", "exactly one of");
        check("{calls: 1}", "limit.within: is missing");
        check("{bytes: 1KiB}", "limit.within: is missing");
        check("{calls: 1, within: 0s}", "limit.within: 0s: give more than nothing");
        check("{calls: 1, within: -1s}", "limit.within");
        check("{calls: 1, within: 7d}", "days");
        check("{calls: 1, within: 745h}", "no more than 31 days");
        check("{concurrent: 1, within: 60s}", "limit.within: leave it out");
        check("{calls: 0, within: 60s}", "limit.calls: 0: give at least 1");
        check("{bytes: 0, within: 60s}", "limit.bytes: 0");
        check("{concurrent: 1000001}", "limit.concurrent: 1000001: give 1 to 1000000");
        check("{concurrent: 1, per: []}", "limit.per: is empty");
        check("{concurrent: 1, per: [tool, agent, tool]}", "limit.per: `tool` is there twice");
        check("{concurrent: 1, per: pod}", "per");
        check("{concurrent: 1, burst: 2}", "burst");
        check("{calls: -1, within: 60s}", "calls");
    }
}
