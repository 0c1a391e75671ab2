//! What bench-server lists: 25 tools of about 1 KB for each of 200 endpoints, no two alike, made when they are first
//! asked for.

use std::sync::OnceLock;

use serde_json::{Value, json};

/// Names of this server are `tools-0.bench` and so on.
const ENDPOINTS: usize = 200;
const PER_ENDPOINT: usize = 25;

/// The lists of all endpoints, which are of one length.
pub(crate) struct Tools([OnceLock<String>; ENDPOINTS]);

impl Tools {
    pub(crate) fn new() -> Self {
        Self([const { OnceLock::new() }; ENDPOINTS])
    }

    /// The list of an endpoint, a JSON array.
    pub(crate) fn of(&self, endpoint: usize) -> &str {
        let tools = || Value::from_iter((0..PER_ENDPOINT).map(|number| tool(endpoint, number)));
        self.0[endpoint].get_or_init(|| tools().to_string())
    }
}

/// Which endpoint a `Host` means.
pub(crate) fn endpoint(host: &[u8]) -> Option<usize> {
    let number = std::str::from_utf8(host).ok()?.strip_prefix("tools-")?.strip_suffix(".bench")?;
    number.parse().ok().filter(|number| *number < ENDPOINTS)
}

/// Its name occurs on no other endpoint: names of one address are names of one server, whose tools do not differ by name.
fn tool(endpoint: usize, number: usize) -> Value {
    json!({
        "name": format!("depot{endpoint:03}_query{number:02}"),
        "title": format!("Query {number:02} of depot {endpoint:03}"),
        "description": format!(
            "Looks up the items of shelf {number:02} in depot {endpoint:03} and returns one line for each, with its \
             number, its name, how many are there and when they were counted last. Without a filter the first hundred \
             are returned, in the order of their numbers; ask for the rest with the offset. Nothing is changed."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "filter": {"type": "string", "description": "Part of the name; case does not matter", "maxLength": 80},
                "offset": {"type": "integer", "description": "How many to leave out", "minimum": 0, "default": 0},
                "order": {"type": "string", "enum": ["number", "name", "count"], "default": "number"},
                "counted": {"type": "object", "properties": {"since": {"type": "string", "format": "date"}}},
            },
            "required": ["filter"],
            "additionalProperties": false,
        },
        "outputSchema": {
            "type": "object",
            "properties": {"items": {"type": "array", "items": {"type": "object"}}, "more": {"type": "boolean"}},
        },
        "annotations": {"readOnlyHint": true, "idempotentHint": true, "openWorldHint": false},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_of_one_length_and_of_different_tools_of_1_kb() {
        let tools = Tools::new();
        let mut names = std::collections::BTreeSet::new();
        for endpoint in 0..ENDPOINTS {
            let list: Vec<Value> = serde_json::from_str(tools.of(endpoint)).unwrap();
            names.extend(list.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
            assert_eq!(tools.of(endpoint).len(), tools.of(0).len());
        }
        assert_eq!(names.len(), ENDPOINTS * PER_ENDPOINT);
        assert!((900..1150).contains(&(tools.of(0).len() / PER_ENDPOINT)), "{}", tools.of(0).len());
    }

    #[test]
    fn hosts_name_endpoints() {
        assert_eq!(endpoint(b"tools-199.bench"), Some(199));
        assert!([&b"tools-200.bench"[..], b"tools-.bench", b"127.0.0.1:80"].map(endpoint) == [None; 3]);
    }
}
