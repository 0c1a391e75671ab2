//! Which protocol a message is of.

use serde::Serialize;

/// A protocol between agents and what they use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Model Context Protocol
    #[default]
    Mcp,
    /// Agent2Agent Protocol, over JSON-RPC or HTTP+JSON
    A2a,
    /// JSON-RPC that is neither.
    JsonRpc,
}

impl Protocol {
    /// All of them, in the order of their numbers.
    pub const ALL: [Protocol; 3] = [Protocol::Mcp, Protocol::A2a, Protocol::JsonRpc];

    /// The value in records, metrics and conditions.
    pub fn label(self) -> &'static str {
        match self {
            Protocol::Mcp => "mcp",
            Protocol::A2a => "a2a",
            Protocol::JsonRpc => "jsonrpc",
        }
    }

    /// That of a method which is not MCP's (A2A 0.3, section 3.5.6; 1.0, section 5.3; and what was before).
    pub fn of_other(method: &str) -> Protocol {
        let is_a2a = match method.split_once('/') {
            Some(("message" | "agent" | "tasks", _)) => true,
            Some(_) => false,
            None => METHODS.contains(&method),
        };
        if is_a2a { Protocol::A2a } else { Protocol::JsonRpc }
    }
}

const METHODS: [&str; 11] = [
    "SendMessage",
    "SendStreamingMessage",
    "GetTask",
    "ListTasks",
    "CancelTask",
    "SubscribeToTask",
    "CreateTaskPushNotificationConfig",
    "GetTaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs",
    "DeleteTaskPushNotificationConfig",
    "GetExtendedAgentCard",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_tell_their_protocol() {
        for method in
            ["SendMessage", "message/stream", "tasks/resubscribe", "agent/authenticatedExtendedCard"]
        {
            assert_eq!(Protocol::of_other(method), Protocol::A2a, "{method}");
        }
        for method in ["eth_call", "textDocument/hover", "sendMessage", "message"] {
            assert_eq!(Protocol::of_other(method), Protocol::JsonRpc, "{method}");
        }
        for (number, protocol) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(protocol as usize, number);
        }
    }
}
