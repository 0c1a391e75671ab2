//! A condition as it runs: checked, names resolved, patterns and time zones compiled.

use jiff::tz::TimeZone;
use regex::Regex;

use super::functions::{Function, Part};
use super::value::Value;
use super::variables::Input;

/// A part of an expression.
#[derive(Debug)]
pub(super) struct Node {
    /// Where it is in the text, in bytes.
    pub at: u32,
    pub op: Op,
}

#[derive(Debug)]
pub(super) enum Op {
    Literal(Value<'static>),
    Variable(Input),
    /// The variable of a macro, counted from the outermost.
    Local(usize),
    Select(Box<Node>, Box<str>),
    Has(Box<Node>, Box<str>),
    Index(Box<[Node; 2]>),
    Not(Box<Node>),
    Negate(Box<Node>),
    /// `&&` and `||`: one side that is `decides` is the value, whatever becomes of the other.
    Logic {
        decides: bool,
        sides: Box<[Node; 2]>,
    },
    Binary(Binary, Box<[Node; 2]>),
    /// Condition, then, else.
    Choose(Box<[Node; 3]>),
    List(Box<[Node]>),
    Map(Box<[(Node, Node)]>),
    Call(Function, Box<[Node]>),
    Matches(Box<Node>, Regex),
    Part(Part, Box<Node>, TimeZone),
    /// Range and body.
    Fold(Fold, Box<[Node; 2]>),
    /// `map` and `filter`.
    Collect {
        range: Box<Node>,
        guard: Option<Box<Node>>,
        element: Box<Node>,
    },
}

impl Op {
    /// Whether it has the same value for every message, but does not have it yet.
    pub(super) fn is_constant(&self) -> bool {
        let known = |node: &Node| matches!(node.op, Op::Literal(_));
        match self {
            Op::Negate(operand) | Op::Part(_, operand, _) => known(operand),
            Op::Call(_, nodes) | Op::List(nodes) => nodes.iter().all(known),
            Op::Map(members) => members.iter().all(|(name, value)| known(name) && known(value)),
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fold {
    All,
    Exists,
    ExistsOne,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

impl Binary {
    /// As it is written.
    pub(super) fn sign(self) -> &'static str {
        match self {
            Binary::Equal => "==",
            Binary::NotEqual => "!=",
            Binary::Less => "<",
            Binary::LessEqual => "<=",
            Binary::Greater => ">",
            Binary::GreaterEqual => ">=",
            Binary::In => "in",
            Binary::Add => "+",
            Binary::Subtract => "-",
            Binary::Multiply => "*",
            Binary::Divide => "/",
            Binary::Modulo => "%",
        }
    }
}
