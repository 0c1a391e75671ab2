//! Runs a checked expression on one message. Work is counted, whatever an agent sends; nothing is written or kept.

use std::cmp::Ordering;
use std::sync::Arc;

use super::functions::Function;
use super::inputs::Inputs;
use super::node::{Binary, Fold, Node, Op};
use super::value::{Exhausted, Members, Meter, Text, Value, shorten};
use super::{calls, times};
use crate::decide::subject::Subject;

/// Why there is no value.
#[derive(Debug)]
pub(super) enum Failure {
    /// It took all its steps. No `||` makes up for that.
    Exhausted,
    /// At this place of the text.
    Failed { at: u32, text: String },
}

impl From<Exhausted> for Failure {
    fn from(_: Exhausted) -> Failure {
        Failure::Exhausted
    }
}

/// The value of an expression that uses no variable. The error is without a place.
pub(super) fn constant(node: &Node) -> Result<Value<'static>, String> {
    let subject = Subject::default();
    let inputs = Inputs::new(&subject);
    let value = Run::new(&inputs).eval(node).map(Value::into_static);
    value.map_err(|failure| match failure {
        Failure::Exhausted => "it is too much work".to_owned(),
        Failure::Failed { text, .. } => text,
    })
}

/// One run on one message.
pub(super) struct Run<'e, 'a> {
    inputs: &'e Inputs<'a>,
    /// Variables of the macros around, innermost last.
    locals: Vec<Value<'e>>,
    meter: Meter,
}

impl<'e, 'a: 'e> Run<'e, 'a> {
    pub(super) fn new(inputs: &'e Inputs<'a>) -> Run<'e, 'a> {
        Run { inputs, locals: Vec::new(), meter: Meter::new(super::MAX_STEPS) }
    }

    pub(super) fn eval_bool(&mut self, node: &'e Node) -> Result<bool, Failure> {
        match self.eval(node)? {
            Value::Bool(value) => Ok(value),
            other => Err(node.fails(format!("a bool is needed here, and this is of type {}", other.kind()))),
        }
    }

    fn eval(&mut self, node: &'e Node) -> Result<Value<'e>, Failure> {
        self.meter.step()?;
        match &node.op {
            Op::Literal(Value::Text(text)) => Ok(Value::Text(Text::Borrowed(text.as_str()))),
            Op::Literal(value) => Ok(value.clone()),
            Op::Variable(input) => self.inputs.value(*input).map_err(|text| node.fails(text)),
            Op::Local(slot) => {
                let local = self.locals.get(*slot).cloned();
                local.ok_or_else(|| node.fails("no such variable".to_owned()))
            }
            Op::Select(of, name) => {
                let of = self.eval(of)?;
                node.members(&of)?.get(name).cloned().ok_or_else(|| node.lacks(name))
            }
            Op::Has(of, name) => {
                let of = self.eval(of)?;
                Ok(Value::Bool(node.members(&of)?.get(name).is_some()))
            }
            Op::Index(sides) => self.index(node, sides),
            Op::Not(operand) => self.eval_bool(operand).map(|value| Value::Bool(!value)),
            Op::Negate(operand) => match self.eval(operand)? {
                Value::Int(value) => {
                    let value = value.checked_neg().map(Value::Int);
                    value.ok_or_else(|| node.fails("the number is too large".to_owned()))
                }
                Value::Double(value) => Ok(Value::Double(-value)),
                other => Err(node.fails(format!("there is no -{}", other.kind()))),
            },
            Op::Logic { decides, sides } => self.logic(*decides, sides).map(Value::Bool),
            Op::Binary(binary, sides) => {
                let [left, right] = &**sides;
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                self.binary(node, *binary, left, right)
            }
            Op::Choose(parts) => {
                let [condition, then, otherwise] = &**parts;
                let chosen = if self.eval_bool(condition)? { then } else { otherwise };
                self.eval(chosen)
            }
            Op::List(elements) => {
                let values = elements.iter().map(|element| self.eval(element));
                values.collect::<Result<Vec<_>, _>>().map(Value::list)
            }
            Op::Map(entries) => self.map(node, entries),
            Op::Call(function, arguments) => self.call(node, *function, arguments),
            Op::Matches(of, pattern) => {
                let of = self.eval(of)?;
                let text = node.text(&of)?;
                self.meter.bytes(text.len())?;
                Ok(Value::Bool(pattern.is_match(text)))
            }
            Op::Part(part, of, zone) => {
                let of = self.eval(of)?;
                let value = times::part(*part, &of, zone).map(Value::Int);
                value.ok_or_else(|| node.fails(format!("{} has no such part", of.kind())))
            }
            Op::Fold(fold, parts) => {
                let [range, body] = &**parts;
                let range = self.range(range)?;
                self.fold(*fold, &range, body).map(Value::Bool)
            }
            Op::Collect { range, guard, element } => {
                let range = self.range(range)?;
                self.collect(&range, guard.as_deref(), element)
            }
        }
    }

    /// Either side may decide alone, even where the other fails.
    fn logic(&mut self, decides: bool, sides: &'e [Node; 2]) -> Result<bool, Failure> {
        let [left, right] = sides;
        let left = self.eval_bool(left);
        if matches!(left, Ok(value) if value == decides) || matches!(left, Err(Failure::Exhausted)) {
            return left;
        }
        let right = self.eval_bool(right);
        if matches!(right, Ok(value) if value == decides) || matches!(right, Err(Failure::Exhausted)) {
            return right;
        }
        left.and(right)
    }

    fn index(&mut self, node: &'e Node, sides: &'e [Node; 2]) -> Result<Value<'e>, Failure> {
        let [of, index] = sides;
        let (of, index) = (self.eval(of)?, self.eval(index)?);
        match (&of, &index) {
            (Value::Map(members), Value::Text(name)) => {
                members.get(name.as_str()).cloned().ok_or_else(|| node.lacks(name.as_str()))
            }
            (Value::List(elements), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
                let index = calls::to_int(&index).filter(|whole| {
                    let whole = Value::Int(*whole);
                    whole.compare(&index) == Some(Ordering::Equal)
                });
                let element = index.and_then(|index| elements.get(usize::try_from(index).ok()?).cloned());
                element.ok_or_else(|| node.fails(format!("no such element of a list of {}", elements.len())))
            }
            _ => Err(node.fails(format!("there is no {}[{}]", of.kind(), index.kind()))),
        }
    }

    fn binary(
        &mut self,
        node: &Node,
        binary: Binary,
        left: Value<'e>,
        right: Value<'e>,
    ) -> Result<Value<'e>, Failure> {
        let order = |accepts: fn(Ordering) -> bool| {
            if let (Value::Text(left), Value::Text(right)) = (&left, &right) {
                self.meter.bytes(left.as_str().len().min(right.as_str().len()))?;
            }
            let order = left.compare(&right).ok_or_else(|| node.mismatch(binary, &left, &right))?;
            Ok(Value::Bool(accepts(order)))
        };
        match binary {
            Binary::Equal => Ok(Value::Bool(left.equals(&right, &self.meter)?)),
            Binary::NotEqual => Ok(Value::Bool(!left.equals(&right, &self.meter)?)),
            Binary::Less => order(Ordering::is_lt),
            Binary::LessEqual => order(Ordering::is_le),
            Binary::Greater => order(Ordering::is_gt),
            Binary::GreaterEqual => order(Ordering::is_ge),
            Binary::In => self.contains(node, &left, &right).map(Value::Bool),
            _ => {
                let value = calls::arithmetic(binary, &left, &right, &self.meter)?;
                let value = value.ok_or_else(|| node.mismatch(binary, &left, &right))?;
                value.map_err(|text| node.fails(text))
            }
        }
    }

    fn contains(&mut self, node: &Node, element: &Value<'e>, of: &Value<'e>) -> Result<bool, Failure> {
        match (element, of) {
            (_, Value::List(elements)) => {
                for other in elements.iter() {
                    if element.equals(other, &self.meter)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            (Value::Text(name), Value::Map(members)) => Ok(members.get(name.as_str()).is_some()),
            // Names they could be in the language, but no map here has them.
            (Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Map(_)) => Ok(false),
            _ => Err(node.mismatch(Binary::In, element, of)),
        }
    }

    fn map(&mut self, node: &Node, entries: &'e [(Node, Node)]) -> Result<Value<'e>, Failure> {
        let mut members = Vec::with_capacity(entries.len());
        for (name, value) in entries {
            let name = match self.eval(name)? {
                Value::Text(name) => name,
                other => {
                    return Err(name.fails(format!("names of members are strings, not {}", other.kind())));
                }
            };
            members.push((name, self.eval(value)?));
        }
        let members = Members::new(members).map_err(|text| node.fails(text))?;
        Ok(Value::Map(Arc::new(members)))
    }

    fn call(&mut self, node: &Node, function: Function, arguments: &'e [Node]) -> Result<Value<'e>, Failure> {
        let result = match arguments {
            [argument] => {
                let argument = self.eval(argument)?;
                calls::convert(function, argument, &self.meter)?
            }
            [of, argument] => {
                let (of, argument) = (self.eval(of)?, self.eval(argument)?);
                calls::search(function, &of, &argument, &self.meter)?
            }
            _ => Err("no such function".to_owned()),
        };
        result.map_err(|text| node.fails(text))
    }

    /// What a macro goes through: elements, or names of members.
    fn range(&mut self, node: &'e Node) -> Result<Arc<[Value<'e>]>, Failure> {
        match self.eval(node)? {
            Value::List(elements) => Ok(elements),
            Value::Map(members) => {
                self.meter.elements(members.len())?;
                Ok(members.iter().map(|(name, _)| Value::Text(name.clone())).collect())
            }
            other => {
                Err(node
                    .fails(format!("a list or a map is needed here, and this is of type {}", other.kind())))
            }
        }
    }

    fn with_local<T>(&mut self, value: &Value<'e>, run: impl FnOnce(&mut Self) -> T) -> T {
        self.locals.push(value.clone());
        let result = run(self);
        self.locals.pop();
        result
    }

    fn fold(&mut self, fold: Fold, range: &[Value<'e>], body: &'e Node) -> Result<bool, Failure> {
        let mut failed = None;
        let mut count = 0;
        for element in range {
            match (fold, self.with_local(element, |run| run.eval_bool(body))) {
                (Fold::All, Ok(false)) => return Ok(false),
                (Fold::Exists, Ok(true)) => return Ok(true),
                (Fold::ExistsOne, Ok(true)) => count += 1,
                (_, Ok(_)) => {}
                // As with `&&` and `||`, an element may still decide alone.
                (Fold::All | Fold::Exists, Err(failure @ Failure::Failed { .. })) => failed = Some(failure),
                (_, Err(failure)) => return Err(failure),
            }
        }
        match (failed, fold) {
            (Some(failure), _) => Err(failure),
            (None, Fold::All) => Ok(true),
            (None, Fold::Exists) => Ok(false),
            (None, Fold::ExistsOne) => Ok(count == 1),
        }
    }

    fn collect(
        &mut self,
        range: &[Value<'e>],
        guard: Option<&'e Node>,
        element: &'e Node,
    ) -> Result<Value<'e>, Failure> {
        let mut values = Vec::new();
        for value in range {
            let made = self.with_local(value, |run| {
                let wanted = guard.map_or(Ok(true), |guard| run.eval_bool(guard))?;
                wanted.then(|| run.eval(element)).transpose()
            });
            values.extend(made?);
        }
        Ok(Value::list(values))
    }
}

impl Node {
    fn fails(&self, text: String) -> Failure {
        Failure::Failed { at: self.at, text }
    }

    fn lacks(&self, name: &str) -> Failure {
        self.fails(format!("no member {:?}", shorten(name)))
    }

    fn members<'v, 'a>(&self, of: &'v Value<'a>) -> Result<&'v Members<'a>, Failure> {
        match of {
            Value::Map(members) => Ok(members),
            other => Err(self.fails(format!("a value of type {} has no members", other.kind()))),
        }
    }

    fn text<'v>(&self, of: &'v Value<'_>) -> Result<&'v str, Failure> {
        match of {
            Value::Text(text) => Ok(text.as_str()),
            other => {
                Err(self.fails(format!("a string is needed here, and this is of type {}", other.kind())))
            }
        }
    }

    fn mismatch(&self, binary: Binary, left: &Value<'_>, right: &Value<'_>) -> Failure {
        let (left, sign, right) = (left.kind(), binary.sign(), right.kind());
        let is_number = |kind: &str| matches!(kind, "int" | "uint" | "double");
        let hint = if is_number(left) && is_number(right) && left != right {
            "; convert one with int(), uint() or double()"
        } else {
            ""
        };
        self.fails(format!("there is no {left} {sign} {right}{hint}"))
    }
}
