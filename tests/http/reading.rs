//! How somebody reads a stream of messages.

/// What is the same to all who read a message as the same.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// Method and path of a request, status of a response.
    pub(crate) what: String,
    /// The server of a request, in lower case and without port.
    pub(crate) server: String,
    pub(crate) content: Vec<u8>,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With its last message.
    Clean,
    /// In the middle of one.
    Cut,
    /// With one that was refused, for that reason.
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) messages: Vec<Message>,
    pub(crate) end: End,
    /// How many bytes were let through. Only of ours.
    pub(crate) passed: usize,
    /// Where each message ends. Only of ours.
    pub(crate) ends: Vec<usize>,
}

impl Reading {
    pub(crate) fn new(messages: Vec<Message>, end: End) -> Self {
        Self { messages, end, passed: 0, ends: Vec::new() }
    }

    /// The first message alone.
    pub(crate) fn first(&self) -> Self {
        match self.ends.first() {
            Some(&passed) => {
                let messages = self.messages[..1].to_vec();
                Self { messages, end: End::Clean, passed, ends: vec![passed] }
            }
            None => self.clone(),
        }
    }
}

impl End {
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<{} @{} {:?}>", self.what, self.server, self.content.escape_ascii().to_string())
    }
}

/// The name in an authority, as servers compare names.
pub(crate) fn name(authority: &str) -> String {
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    };
    name.to_ascii_lowercase()
}
