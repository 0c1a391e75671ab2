//! What functions and arithmetic do.

use jiff::{SignedDuration, Timestamp};

use super::functions::Function;
use super::node::Binary;
use super::times;
use super::value::{Exhausted, Meter, Text, Value, shorten};

/// A value, or why there is none.
type Outcome<'a> = Result<Value<'a>, String>;

/// `None`: there is no such operator for these types.
pub(super) fn arithmetic<'a>(
    binary: Binary,
    left: &Value<'a>,
    right: &Value<'a>,
    meter: &Meter,
) -> Result<Option<Outcome<'a>>, Exhausted> {
    let value = match (left, right) {
        (Value::Int(left), Value::Int(right)) => integers(binary, *left, *right),
        (Value::Uint(left), Value::Uint(right)) => unsigned(binary, *left, *right),
        (Value::Double(left), Value::Double(right)) => match binary {
            Binary::Add => Some(Value::Double(left + right)),
            Binary::Subtract => Some(Value::Double(left - right)),
            Binary::Multiply => Some(Value::Double(left * right)),
            Binary::Divide => Some(Value::Double(left / right)),
            _ => return Ok(None),
        },
        (Value::Text(left), Value::Text(right)) if binary == Binary::Add => {
            let (left, right) = (left.as_str(), right.as_str());
            meter.bytes(left.len() + right.len())?;
            Some(Value::made([left, right].concat()))
        }
        (Value::List(left), Value::List(right)) if binary == Binary::Add => {
            meter.elements(left.len() + right.len())?;
            Some(Value::List(left.iter().chain(right.iter()).cloned().collect()))
        }
        _ => match times(binary, left, right) {
            Some(value) => value,
            None => return Ok(None),
        },
    };
    Ok(Some(value.ok_or_else(|| match binary {
        Binary::Divide | Binary::Modulo => "division by zero, or the number is too large".to_owned(),
        _ => "the number or the time is too large".to_owned(),
    })))
}

/// `None`: out of range.
fn integers<'a>(binary: Binary, left: i64, right: i64) -> Option<Value<'a>> {
    let value = match binary {
        Binary::Add => left.checked_add(right),
        Binary::Subtract => left.checked_sub(right),
        Binary::Multiply => left.checked_mul(right),
        Binary::Divide => left.checked_div(right),
        _ => left.checked_rem(right),
    };
    value.map(Value::Int)
}

fn unsigned<'a>(binary: Binary, left: u64, right: u64) -> Option<Value<'a>> {
    let value = match binary {
        Binary::Add => left.checked_add(right),
        Binary::Subtract => left.checked_sub(right),
        Binary::Multiply => left.checked_mul(right),
        Binary::Divide => left.checked_div(right),
        _ => left.checked_rem(right),
    };
    value.map(Value::Uint)
}

/// `None`: there is no such operator; `Some(None)`: out of range.
fn times<'a>(binary: Binary, left: &Value<'_>, right: &Value<'_>) -> Option<Option<Value<'a>>> {
    let shift = |time: &Timestamp, by: Option<SignedDuration>| {
        by.and_then(|by| time.checked_add(by).ok()).map(Value::Timestamp)
    };
    match (binary, left, right) {
        (Binary::Add, Value::Timestamp(time), Value::Duration(by))
        | (Binary::Add, Value::Duration(by), Value::Timestamp(time)) => Some(shift(time, Some(*by))),
        (Binary::Subtract, Value::Timestamp(time), Value::Duration(by)) => {
            Some(shift(time, by.checked_neg()))
        }
        (Binary::Subtract, Value::Timestamp(left), Value::Timestamp(right)) => {
            Some(Some(Value::Duration(left.duration_since(*right))))
        }
        (Binary::Add, Value::Duration(left), Value::Duration(right)) => {
            Some(left.checked_add(*right).map(Value::Duration))
        }
        (Binary::Subtract, Value::Duration(left), Value::Duration(right)) => {
            Some(left.checked_sub(*right).map(Value::Duration))
        }
        _ => None,
    }
}

/// Functions of a text and another.
pub(super) fn search<'a>(
    function: Function,
    of: &Value<'_>,
    part: &Value<'_>,
    meter: &Meter,
) -> Result<Outcome<'a>, Exhausted> {
    let (Value::Text(of), Value::Text(part)) = (of, part) else {
        return Ok(Err(format!("two strings are needed here, not {} and {}", of.kind(), part.kind())));
    };
    let (of, part) = (of.as_str(), part.as_str());
    meter.bytes(of.len() + part.len())?;
    Ok(match function {
        Function::Contains => Ok(Value::Bool(of.contains(part))),
        Function::StartsWith => Ok(Value::Bool(of.starts_with(part))),
        Function::EndsWith => Ok(Value::Bool(of.ends_with(part))),
        _ => Err("no such function".to_owned()),
    })
}

/// Functions of one value.
pub(super) fn convert<'a>(
    function: Function,
    value: Value<'a>,
    meter: &Meter,
) -> Result<Outcome<'a>, Exhausted> {
    if let Value::Text(text) = &value {
        meter.bytes(text.as_str().len())?;
    }
    let no_such = |what: &str| Err(format!("no {what} can be made of this {}", value.kind()));
    Ok(match (function, &value) {
        (Function::Dyn, _) => Ok(value),
        (Function::TypeOf, _) => Ok(Value::Type(value.kind())),
        (Function::Size, Value::Text(text)) => count(text.as_str().chars().count()),
        (Function::Size, Value::List(elements)) => count(elements.len()),
        (Function::Size, Value::Map(members)) => count(members.len()),
        (Function::Size, other) => Err(format!("{} has no size", other.kind())),
        (Function::Bool, Value::Bool(_))
        | (Function::Int, Value::Int(_))
        | (Function::Uint, Value::Uint(_))
        | (Function::Double, Value::Double(_))
        | (Function::Text, Value::Text(_))
        | (Function::Timestamp, Value::Timestamp(_))
        | (Function::Duration, Value::Duration(_)) => Ok(value),
        (Function::Bool, Value::Text(text)) => match text.as_str() {
            "1" | "t" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => no_such("bool"),
        },
        (Function::Int, Value::Text(text)) => parse(text, Value::Int),
        (Function::Int, Value::Timestamp(time)) => Ok(Value::Int(time.as_second())),
        (Function::Int, _) => to_int(&value).map_or_else(|| no_such("int"), |number| Ok(Value::Int(number))),
        (Function::Uint, Value::Text(text)) => parse(text, Value::Uint),
        (Function::Uint, _) => {
            to_uint(&value).map_or_else(|| no_such("uint"), |number| Ok(Value::Uint(number)))
        }
        (Function::Double, Value::Text(text)) => parse(text, Value::Double),
        #[expect(clippy::cast_precision_loss, reason = "a double is asked for")]
        (Function::Double, Value::Int(number)) => Ok(Value::Double(*number as f64)),
        #[expect(clippy::cast_precision_loss, reason = "a double is asked for")]
        (Function::Double, Value::Uint(number)) => Ok(Value::Double(*number as f64)),
        (Function::Text, Value::Bool(value)) => Ok(Value::made(value.to_string())),
        (Function::Text, Value::Int(number)) => Ok(Value::made(number.to_string())),
        (Function::Text, Value::Uint(number)) => Ok(Value::made(number.to_string())),
        (Function::Text, Value::Double(number)) => Ok(Value::made(number.to_string())),
        (Function::Text, Value::Timestamp(time)) => Ok(Value::made(time.to_string())),
        (Function::Text, Value::Duration(duration)) => Ok(Value::made(times::show_duration(*duration))),
        (Function::Timestamp, Value::Text(text)) => {
            times::parse_timestamp(text.as_str()).map(Value::Timestamp)
        }
        (Function::Timestamp, Value::Int(seconds)) => Timestamp::from_second(*seconds)
            .map(Value::Timestamp)
            .map_err(|_| format!("{seconds} seconds are no timestamp")),
        (Function::Duration, Value::Text(text)) => times::parse_duration(text.as_str()).map(Value::Duration),
        _ => no_such("such value"),
    })
}

/// The integer a number is, without its fraction; `None` where there is none.
pub(super) fn to_int(value: &Value<'_>) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::Uint(number) => i64::try_from(*number).ok(),
        Value::Double(number) => to_whole(*number).and_then(|number| number.try_into().ok()),
        _ => None,
    }
}

fn to_uint(value: &Value<'_>) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::Uint(number) => Some(*number),
        Value::Double(number) => to_whole(*number).and_then(|number| number.try_into().ok()),
        _ => None,
    }
}

fn to_whole(number: f64) -> Option<i128> {
    /// Larger than any integer of 64 bits.
    const BEYOND: f64 = 1e20;
    #[expect(clippy::cast_possible_truncation, reason = "the fraction goes, and the rest is in range")]
    (number.abs() < BEYOND).then_some(number as i128)
}

fn parse<'a, T: std::str::FromStr>(text: &Text<'_>, value: fn(T) -> Value<'a>) -> Outcome<'a> {
    let error = || format!("{:?} is no such number", shorten(text.as_str()));
    text.as_str().parse().map(value).map_err(|_| error())
}

fn count<'a>(number: usize) -> Outcome<'a> {
    Ok(Value::Int(i64::try_from(number).unwrap_or(i64::MAX)))
}
