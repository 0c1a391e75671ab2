//! JSON as values: read once per message, strings borrowed, the number of values bounded.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Map;

use super::value::{Members, Text, Value};

/// More values than this one JSON text may not have: a value takes up to 56 bytes in memory, and as few as two in the
/// text.
pub(super) const MAX_VALUES: usize = 250_000;

/// Reads a JSON text. Errors say what is wrong and where: numbers that no double holds, more than [`MAX_VALUES`] values,
/// nesting from 128 on.
pub(super) fn parse(text: &str) -> Result<Value<'_>, String> {
    let left = Cell::new(MAX_VALUES);
    let mut json = serde_json::Deserializer::from_str(text);
    let value = Seed(&left).deserialize(&mut json);
    value.and_then(|value| json.end().map(|()| value)).map_err(|error| error.to_string())
}

/// Members of an object that was read before. Errors as of [`parse`].
pub(super) fn convert(members: &Map<String, serde_json::Value>) -> Result<Value<'_>, String> {
    let left = Cell::new(MAX_VALUES);
    Seed(&left).deserialize(members).map_err(|error| error.to_string())
}

/// How many values may still come.
#[derive(Clone, Copy)]
struct Seed<'c>(&'c Cell<usize>);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value<'de>, D::Error> {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.ok_or_else(|| D::Error::custom(format!("more than {MAX_VALUES} values")))?);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value<'de>, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value<'de>, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value<'de>, E> {
        Ok(i64::try_from(value).map_or(Value::Uint(value), Value::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value<'de>, E> {
        Ok(Value::Double(value))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Text::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Text::Made(text.into())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value<'de>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = elements.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::list(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(name) = entries.next_key_seed(Name)? {
            members.push((name, entries.next_value_seed(self)?));
        }
        Members::new(members).map(|members| Value::Map(Arc::new(members))).map_err(A::Error::custom)
    }
}

/// The name of a member.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Text<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Text<'de>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text::Made(text.into()))
    }
}
