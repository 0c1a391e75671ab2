//! Types of expressions, as far as they can be known before any message is there.

use std::fmt;

/// The type of an expression. JSON is [`Kind::Dyn`] all through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any type: known only when it runs.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Timestamp,
    Duration,
    /// What `type(x)` gives.
    Type,
    /// Of elements of this type; `None`: of any.
    List(Option<Box<Kind>>),
    /// From strings to values of this type; `None`: of any. As in JSON, no other keys.
    Map(Option<Box<Kind>>),
}

impl Kind {
    pub(super) fn list_of(element: Kind) -> Kind {
        Kind::List(boxed(element))
    }

    pub(super) fn map_to(value: Kind) -> Kind {
        Kind::Map(boxed(value))
    }

    /// Whether a value of this type can ever be the same as one of the other. Numbers compare across their types, as
    /// the language says.
    pub(super) fn meets(&self, other: &Kind) -> bool {
        match (self, other) {
            (Kind::List(left), Kind::List(right)) | (Kind::Map(left), Kind::Map(right)) => {
                left.as_ref().zip(right.as_ref()).is_none_or(|(left, right)| left.meets(right))
            }
            _ => self.fits(other) || (self.is_number() && other.is_number()),
        }
    }

    /// Whether a value of this type may be given where the other is asked for.
    pub(super) fn fits(&self, asked: &Kind) -> bool {
        match (self, asked) {
            (Kind::Dyn, _) | (_, Kind::Dyn) => true,
            (Kind::List(_), Kind::List(_)) | (Kind::Map(_), Kind::Map(_)) => true,
            (given, asked) => given == asked,
        }
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Kind::Int | Kind::Uint | Kind::Double)
    }

    /// Whether `<` is defined for it.
    pub(super) fn is_ordered(&self) -> bool {
        let others = matches!(self, Kind::Dyn | Kind::Bool | Kind::String | Kind::Timestamp | Kind::Duration);
        others || self.is_number()
    }

    /// The type of an expression that is either of the two.
    pub(super) fn join(self, other: Kind) -> Kind {
        if self == other { self } else { Kind::Dyn }
    }
}

fn boxed(kind: Kind) -> Option<Box<Kind>> {
    (kind != Kind::Dyn).then(|| Box::new(kind))
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = |inner: &Option<Box<Kind>>| {
            inner.as_ref().map_or_else(|| "dyn".to_owned(), |inner| inner.to_string())
        };
        match self {
            Kind::Dyn => f.write_str("dyn"),
            Kind::Null => f.write_str("null"),
            Kind::Bool => f.write_str("bool"),
            Kind::Int => f.write_str("int"),
            Kind::Uint => f.write_str("uint"),
            Kind::Double => f.write_str("double"),
            Kind::String => f.write_str("string"),
            Kind::Timestamp => f.write_str("timestamp"),
            Kind::Duration => f.write_str("duration"),
            Kind::Type => f.write_str("type"),
            Kind::List(element) => write!(f, "list({})", inner(element)),
            Kind::Map(value) => write!(f, "map(string, {})", inner(value)),
        }
    }
}
