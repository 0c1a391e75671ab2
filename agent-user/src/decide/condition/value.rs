//! Values of expressions while they run. They borrow from the message wherever they can, and a clone never copies what
//! an agent chose the size of.

use std::cell::Cell;
use std::cmp::Ordering;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// One value.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// Written with a `u`, or JSON's integers from 2^63 on.
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    List(Arc<[Value<'a>]>),
    Map(Arc<Members<'a>>),
    Timestamp(Timestamp),
    Duration(SignedDuration),
    /// A type, by its name.
    Type(&'static str),
}

/// A string: of the message, or made by the expression.
#[derive(Clone, Debug)]
pub(super) enum Text<'a> {
    Borrowed(&'a str),
    Made(Arc<str>),
}

/// The members of an object, sorted by name; no name is there twice.
#[derive(Debug, Default)]
pub(super) struct Members<'a>(Box<[(Text<'a>, Value<'a>)]>);

/// What running one condition may still cost.
#[derive(Debug)]
pub(super) struct Meter(Cell<u64>);

/// Nothing is left of it: the condition has no value.
#[derive(Debug)]
pub(super) struct Exhausted;

/// Work on a text counts one step for so many bytes of it.
const BYTES_PER_STEP: usize = 16;

impl Meter {
    pub(super) fn new(steps: u64) -> Meter {
        Meter(Cell::new(steps))
    }

    /// Takes one step.
    pub(super) fn step(&self) -> Result<(), Exhausted> {
        self.take(1)
    }

    /// Takes a step for each of so many elements.
    pub(super) fn elements(&self, count: usize) -> Result<(), Exhausted> {
        self.take(count as u64)
    }

    /// Takes the steps for so many bytes of text.
    pub(super) fn bytes(&self, count: usize) -> Result<(), Exhausted> {
        self.take((count / BYTES_PER_STEP) as u64)
    }

    fn take(&self, steps: u64) -> Result<(), Exhausted> {
        let left = self.0.get().checked_sub(steps);
        // Once it is empty it stays so.
        self.0.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or(Exhausted)
    }
}

impl Text<'_> {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Made(text) => text,
        }
    }
}

impl<'a> Members<'a> {
    /// Sorts them. The error is a name that is there twice.
    pub(super) fn new(mut members: Vec<(Text<'a>, Value<'a>)>) -> Result<Members<'a>, String> {
        members.sort_by(|(left, _), (right, _)| left.as_str().cmp(right.as_str()));
        let twice = members.windows(2).find(|pair| pair[0].0.as_str() == pair[1].0.as_str());
        match twice {
            Some(pair) => Err(format!("member {:?} is there twice", shorten(pair[0].0.as_str()))),
            None => Ok(Members(members.into())),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value<'a>> {
        let found = self.0.binary_search_by(|(member, _)| member.as_str().cmp(name));
        found.ok().map(|index| &self.0[index].1)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Text<'a>, &Value<'a>)> {
        self.0.iter().map(|(name, value)| (name, value))
    }
}

impl<'a> Value<'a> {
    pub(super) fn made(text: String) -> Value<'a> {
        Value::Text(Text::Made(text.into()))
    }

    pub(super) fn list(values: Vec<Value<'a>>) -> Value<'a> {
        Value::List(values.into())
    }

    /// The name of its type, as `type()` gives it and errors name it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::Text(_) => "string",
            Value::List(_) => "list",
            Value::Map(_) => "map",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::Type(_) => "type",
        }
    }

    /// The same value, which borrows nothing.
    pub(super) fn into_static(self) -> Value<'static> {
        match self {
            Value::Null => Value::Null,
            Value::Bool(value) => Value::Bool(value),
            Value::Int(value) => Value::Int(value),
            Value::Uint(value) => Value::Uint(value),
            Value::Double(value) => Value::Double(value),
            Value::Text(text) => Value::Text(text.into_static()),
            Value::List(values) => Value::List(values.iter().cloned().map(Value::into_static).collect()),
            Value::Map(members) => {
                let members = members
                    .iter()
                    .map(|(name, value)| (name.clone().into_static(), value.clone().into_static()));
                Value::Map(Arc::new(Members(members.collect())))
            }
            Value::Timestamp(value) => Value::Timestamp(value),
            Value::Duration(value) => Value::Duration(value),
            Value::Type(name) => Value::Type(name),
        }
    }

    /// Whether both are the same, by number where they are numbers; values of different types are not.
    pub(super) fn equals(&self, other: &Value<'_>, meter: &Meter) -> Result<bool, Exhausted> {
        meter.step()?;
        Ok(match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(left), Value::Bool(right)) => left == right,
            (Value::Text(left), Value::Text(right)) => {
                let (left, right) = (left.as_str(), right.as_str());
                meter.bytes(left.len().min(right.len()))?;
                left == right
            }
            (Value::List(left), Value::List(right)) => {
                left.len() == right.len() && all_equal(left.iter().zip(right.iter()).map(Some), meter)?
            }
            (Value::Map(left), Value::Map(right)) => {
                let pairs = left.iter().zip(right.iter());
                let pairs = pairs.map(|((name, value), (other, others))| {
                    (name.as_str() == other.as_str()).then_some((value, others))
                });
                left.len() == right.len() && all_equal(pairs, meter)?
            }
            (Value::Timestamp(left), Value::Timestamp(right)) => left == right,
            (Value::Duration(left), Value::Duration(right)) => left == right,
            (Value::Type(left), Value::Type(right)) => left == right,
            _ => self.compare_number(other) == Some(Ordering::Equal),
        })
    }

    /// How they are ordered. `None`: they are not, as numbers and texts, or anything and NaN.
    pub(super) fn compare(&self, other: &Value<'_>) -> Option<Ordering> {
        match (self, other) {
            (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
            (Value::Text(left), Value::Text(right)) => Some(left.as_str().cmp(right.as_str())),
            (Value::Timestamp(left), Value::Timestamp(right)) => Some(left.cmp(right)),
            (Value::Duration(left), Value::Duration(right)) => Some(left.cmp(right)),
            _ => self.compare_number(other),
        }
    }

    /// Exactly, whatever their types: nothing is rounded.
    fn compare_number(&self, other: &Value<'_>) -> Option<Ordering> {
        match (self, other) {
            (Value::Double(left), Value::Double(right)) => left.partial_cmp(right),
            (Value::Double(double), _) => Some(compare_double(*double, other.integer()?)?),
            (_, Value::Double(double)) => Some(compare_double(*double, self.integer()?)?.reverse()),
            _ => Some(self.integer()?.cmp(&other.integer()?)),
        }
    }

    fn integer(&self) -> Option<i128> {
        match self {
            Value::Int(value) => Some(i128::from(*value)),
            Value::Uint(value) => Some(i128::from(*value)),
            _ => None,
        }
    }
}

impl Text<'_> {
    fn into_static(self) -> Text<'static> {
        match self {
            Text::Borrowed(text) => Text::Made(text.into()),
            Text::Made(text) => Text::Made(text),
        }
    }
}

/// Whether every pair is there and equal.
fn all_equal<'v, 'a: 'v, 'b: 'v>(
    pairs: impl Iterator<Item = Option<(&'v Value<'a>, &'v Value<'b>)>>,
    meter: &Meter,
) -> Result<bool, Exhausted> {
    for pair in pairs {
        let Some((left, right)) = pair else { return Ok(false) };
        if !left.equals(right, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Integers of 64 bits only.
fn compare_double(double: f64, integer: i128) -> Option<Ordering> {
    /// Larger than any integer of 64 bits, and far from the ends of `i128`.
    const BEYOND: f64 = 1e20;
    if double.is_nan() {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it has no fraction and is less than i128 can hold")]
    let whole = double.trunc().clamp(-BEYOND, BEYOND) as i128;
    let fraction = double.fract().partial_cmp(&0.0).unwrap_or(Ordering::Equal);
    Some(whole.cmp(&integer).then(fraction))
}

/// Of a text that an agent or a server may have chosen, what fits into an error.
pub(super) fn shorten(text: &str) -> &str {
    const LENGTH: usize = 64;
    text.char_indices().nth(LENGTH).map_or(text, |(end, _)| &text[..end])
}
