//! One entry of `workflow:` in the configuration, checked while it is read, so that mistakes come with their place.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::decode::head::is_token;

/// One place to look for the workflow of a call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "ExtractorEntry")]
#[schemars(with = "ExtractorEntry")]
pub enum Extractor {
    Header(String),
    Meta(String),
    Traceparent,
    Baggage(String),
    ContextId,
    Env(String),
    Unit,
}

/// As written: exactly one of these.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Extractor", extend("minProperties" = 1, "maxProperties" = 1))]
struct ExtractorEntry {
    /// The value of this HTTP header of the request.
    header: Option<String>,
    /// The text or whole number under this key of `params._meta` of the message.
    meta: Option<String>,
    /// True: the trace-id of `params._meta.traceparent`, or else of the HTTP header `traceparent`.
    traceparent: Option<bool>,
    /// The value of this key in `params._meta.baggage`, or else in the HTTP header `baggage`.
    baggage: Option<String>,
    /// True: the `contextId` of an A2A request over JSON-RPC.
    context_id: Option<bool>,
    /// The value of this variable in the environment that the process behind the connection was started with.
    env: Option<String>,
    /// True: the systemd unit, without its suffix, of the process behind the connection.
    unit: Option<bool>,
}

impl TryFrom<ExtractorEntry> for Extractor {
    type Error = String;

    fn try_from(entry: ExtractorEntry) -> Result<Extractor, String> {
        let set = |on: Option<bool>, extractor| on.map(|on| if on { Ok(extractor) } else { Err(NOT_FALSE) });
        let ExtractorEntry { header, meta, traceparent, baggage, context_id, env, unit } = entry;
        let given = [
            header.map(|name| Ok(Extractor::Header(name))),
            meta.map(|key| Ok(Extractor::Meta(key))),
            set(traceparent, Extractor::Traceparent),
            baggage.map(|key| Ok(Extractor::Baggage(key))),
            set(context_id, Extractor::ContextId),
            env.map(|name| Ok(Extractor::Env(name))),
            set(unit, Extractor::Unit),
        ];
        let mut given = given.into_iter().flatten();
        let (Some(extractor), None) = (given.next(), given.next()) else {
            return Err(format!("workflow: give each entry exactly one of {KINDS}"));
        };
        let extractor = extractor?;
        extractor.check()?;
        Ok(extractor)
    }
}

impl Extractor {
    fn check(&self) -> Result<(), String> {
        let is_token = |name: &str| !name.is_empty() && name.bytes().all(is_token);
        let (valid, what) = match self {
            Extractor::Header(name) => (is_token(name), "header"),
            Extractor::Baggage(key) => (is_token(key), "baggage"),
            Extractor::Meta(key) => (!key.is_empty(), "meta"),
            Extractor::Env(name) => (!name.is_empty() && !name.contains(['=', '\0']), "env"),
            Extractor::Traceparent | Extractor::ContextId | Extractor::Unit => return Ok(()),
        };
        if !valid {
            return Err(format!("workflow: {what}: this can be no name of one"));
        }
        let (Extractor::Header(name) | Extractor::Meta(name)) = self else { return Ok(()) };
        match &*name.to_ascii_lowercase() {
            "traceparent" => {
                Err("workflow: write `traceparent: true`; all of it differs from call to call".into())
            }
            "baggage" => Err("workflow: write `baggage: KEY`; all of it is more than a workflow".into()),
            "authorization" | "proxy-authorization" | "cookie" | "mcp-session-id" if what == "header" => {
                Err(format!("workflow: header {name} is a secret, and workflows are shown and recorded"))
            }
            _ => Ok(()),
        }
    }
}

const KINDS: &str = "`header`, `meta`, `traceparent`, `baggage`, `context_id`, `env` and `unit`";
const NOT_FALSE: &str = "workflow: write `true`, or leave the entry out";

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(entry: &str, expect: &str) {
        let error = serde_saphyr::from_str::<Vec<Extractor>>(&format!("- {entry}")).unwrap_err().to_string();
        assert!(error.contains(expect) && error.contains("line 1"), "{error}");
    }

    #[test]
    fn mistakes_are_named() {
        check("{}", "exactly one of `header`");
        check("{header: a, env: B}", "exactly one of `header`");
        check("{label: app}", "expected one of");
        check("{traceparent: false}", "leave the entry out");
        check("{traceparent: yes please}", "bool");
        check("{header: 'a b'}", "header: this can be no name");
        check("{header: ''}", "header: this can be no name");
        check("{baggage: 'a=b'}", "baggage: this can be no name");
        check("{meta: ''}", "meta: this can be no name");
        check("{env: A=B}", "env: this can be no name");
        check("{header: Authorization}", "is a secret");
        check("{header: TraceParent}", "`traceparent: true`");
        check("{meta: baggage}", "`baggage: KEY`");
    }

    #[test]
    fn schema_allows_one_kind() {
        let schema = serde_json::to_value(schemars::schema_for!(Extractor)).unwrap();
        assert_eq!((&schema["minProperties"], &schema["maxProperties"]), (&1.into(), &1.into()));
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"].as_object().unwrap().len(), 7);
    }
}
