//! Why a coding cannot be undone: one name per cause.

/// What is wrong with a coded content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A coding that is not known, or more than [`MAX_CODINGS`](super::MAX_CODINGS) of them.
    Unknown,
    /// It is no such coding, its checksum is wrong, or undoing it takes more memory than the web allows (RFC 9659).
    Corrupt,
    /// It ends before the coding does, or is empty.
    Truncated,
    /// Bytes follow the end of the coding.
    Trailing,
    /// It can be read as something else as well.
    Ambiguous,
    /// It is over its limit, coded or decoded.
    Oversized,
}

impl Fault {
    /// The metric and record value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unknown => "content_coding",
            Self::Corrupt => "coding_corrupt",
            Self::Truncated => "coding_truncated",
            Self::Trailing => "coding_trailing_bytes",
            Self::Ambiguous => "coding_ambiguous",
            Self::Oversized => "oversized",
        }
    }
}
