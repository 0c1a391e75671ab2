//! Operators: which types they take, and which one they give.

use cel::common::ast::operators;

use super::kind::Kind;
use super::node::Binary;

/// The operator the parser gives this name.
pub(super) fn named(name: &str) -> Option<Binary> {
    Some(match name {
        operators::EQUALS => Binary::Equal,
        operators::NOT_EQUALS => Binary::NotEqual,
        operators::LESS => Binary::Less,
        operators::LESS_EQUALS => Binary::LessEqual,
        operators::GREATER => Binary::Greater,
        operators::GREATER_EQUALS => Binary::GreaterEqual,
        operators::IN => Binary::In,
        operators::ADD => Binary::Add,
        operators::SUBSTRACT => Binary::Subtract,
        operators::MULTIPLY => Binary::Multiply,
        operators::DIVIDE => Binary::Divide,
        operators::MODULO => Binary::Modulo,
        _ => return None,
    })
}

/// The type an operator gives; `None` where it can never have a value.
pub(super) fn result(binary: Binary, left: &Kind, right: &Kind) -> Option<Kind> {
    use Kind::{Double, Duration, Dyn, Int, List, String, Timestamp, Uint};
    match binary {
        Binary::Equal | Binary::NotEqual => left.meets(right).then_some(Kind::Bool),
        Binary::Less | Binary::LessEqual | Binary::Greater | Binary::GreaterEqual => {
            (left.is_ordered() && right.is_ordered() && left.meets(right)).then_some(Kind::Bool)
        }
        Binary::In => {
            let fits = match right {
                Dyn => true,
                List(element) => element.as_ref().is_none_or(|element| left.meets(element)),
                Kind::Map(_) => left.fits(&String),
                _ => false,
            };
            fits.then_some(Kind::Bool)
        }
        _ => match (binary, left, right) {
            (_, Dyn, Dyn) => Some(Dyn),
            (_, Int, Int | Dyn) | (_, Dyn, Int) => Some(Int),
            (_, Uint, Uint | Dyn) | (_, Dyn, Uint) => Some(Uint),
            (Binary::Modulo, ..) => None,
            (_, Double, Double | Dyn) | (_, Dyn, Double) => Some(Double),
            (Binary::Add, String, String | Dyn) | (Binary::Add, Dyn, String) => Some(String),
            (Binary::Add, List(left), List(right)) if left == right => Some(List(left.clone())),
            (Binary::Add, List(_), List(_) | Dyn) | (Binary::Add, Dyn, List(_)) => Some(List(None)),
            (Binary::Add | Binary::Subtract, Duration, Duration) => Some(Duration),
            (Binary::Add | Binary::Subtract, Timestamp, Duration) => Some(Timestamp),
            (Binary::Add, Duration, Timestamp) => Some(Timestamp),
            (Binary::Subtract, Timestamp, Timestamp) => Some(Duration),
            (Binary::Add | Binary::Subtract, Timestamp | Duration, Dyn) => Some(Dyn),
            (Binary::Add | Binary::Subtract, Dyn, Timestamp | Duration) => Some(Dyn),
            _ => None,
        },
    }
}
