//! The bound on what is kept of a message while it is in flight, and is in its record: its id and its method.

use super::{Message, Payload, Undecodable};

/// Every message has short ones.
pub(super) fn check(payload: &Payload<'_>, limit: usize) -> Result<(), Undecodable> {
    let is_short = |message: &Message<'_>| {
        message.id().is_none_or(|id| id.raw.len() <= limit)
            && message.method().is_none_or(|method| method.len() <= limit)
    };
    if payload.messages().iter().all(is_short) { Ok(()) } else { Err(Undecodable::NameTooLong) }
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, decode};
    use super::*;

    #[test]
    fn what_is_kept_of_a_message_is_not_long() {
        let limits = Limits { name: 8, ..Limits::default() };
        let found = |text: &str| decode(text.as_bytes(), &limits).map(drop);
        let long = Err(Undecodable::NameTooLong);
        assert_eq!(found(r#"{"jsonrpc":"2.0","id":12345678,"method":"12345678"}"#), Ok(()));
        assert_eq!(found(r#"{"jsonrpc":"2.0","id":123456789,"method":"a"}"#), long);
        assert_eq!(found(r#"{"jsonrpc":"2.0","id":1,"method":"123456789"}"#), long);
        assert_eq!(found(r#"{"jsonrpc":"2.0","id":"1234567","result":{}}"#), long);
        assert_eq!(
            found(r#"[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"123456789"}]"#),
            long
        );
        assert_eq!(found(r#"{"id":"123456789","method":"no JSON-RPC"}"#), Ok(()));
    }
}
