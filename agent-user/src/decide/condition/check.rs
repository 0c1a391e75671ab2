//! Checks an expression once, when rules are loaded, and makes of it what runs: every name is known, every type can
//! fit, every pattern and time zone is compiled.
//!
//! JSON is of type `dyn`, which fits everything; what it really is shows when it runs.

use std::collections::BTreeSet;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, MapExpr, SelectExpr, SourceInfo,
    operators,
};
use jiff::tz::TimeZone;
use regex::RegexBuilder;

use super::functions::{self, Function};
use super::hint::{nearest, place};
use super::inputs::phase_name;
use super::kind::Kind;
use super::macros::{Step, step_of};
use super::node::{Fold, Node, Op};
use super::operator;
use super::run;
use super::times;
use super::value::{Text, Value};
use super::variables::{Variable, variables};
use crate::decide::policy::Phase;

/// What came out: the expression, and the variables it uses, by the name of the whole.
pub(super) struct Checked {
    pub node: Node,
    pub uses: BTreeSet<&'static str>,
}

/// Deeper nesting is an error, so that running never needs much stack.
pub(super) const MAX_DEPTH: usize = 64;
/// Memory a compiled pattern may take.
const MAX_PATTERN: usize = 1 << 20;

/// Checks that an expression gives a bool. Errors begin with line and column.
pub(super) fn check(expr: &IdedExpr, source: &SourceInfo, phase: Phase) -> Result<Checked, String> {
    let mut checker = Checker { source, phase, locals: Vec::new(), uses: BTreeSet::new(), depth: 0 };
    let (node, kind) = checker.check(expr)?;
    if !kind.fits(&Kind::Bool) {
        return Err(checker.error(expr, format!("a condition is true or false, and this is of type {kind}")));
    }
    Ok(Checked { node, uses: checker.uses })
}

struct Checker<'s> {
    source: &'s SourceInfo,
    phase: Phase,
    /// Variables of the macros around, innermost last.
    locals: Vec<(&'s str, Kind)>,
    uses: BTreeSet<&'static str>,
    depth: usize,
}

type Typed = (Node, Kind);

impl<'s> Checker<'s> {
    fn check(&mut self, expr: &'s IdedExpr) -> Result<Typed, String> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(expr, format!("nested deeper than {MAX_DEPTH}")));
        }
        self.depth += 1;
        let checked = self.check_shallow(expr);
        self.depth -= 1;
        checked
    }

    fn check_shallow(&mut self, expr: &'s IdedExpr) -> Result<Typed, String> {
        let (op, kind) = match &expr.expr {
            Expr::Literal(literal) => {
                let (value, kind) = self.literal(expr, literal)?;
                (Op::Literal(value), kind)
            }
            Expr::Ident(name) => self.name(expr, name)?,
            Expr::Select(select) => self.select(expr, select)?,
            Expr::Call(call) => self.call(expr, call)?,
            Expr::List(list) => {
                let (elements, kinds): (Vec<_>, Vec<_>) = self.all(&list.elements)?.into_iter().unzip();
                let element = kinds.into_iter().reduce(Kind::join).unwrap_or(Kind::Dyn);
                (Op::List(elements.into()), Kind::list_of(element))
            }
            Expr::Map(map) => self.map(map)?,
            Expr::Comprehension(comprehension) => self.comprehension(expr, comprehension)?,
            Expr::Struct(_) => {
                return Err(self.error(expr, "messages cannot be made here; a map is `{\"a\": 1}`"));
            }
            Expr::Unspecified => return Err(self.error(expr, "empty expression")),
        };
        let at = self.at(expr);
        let node = Node { at, op };
        if !node.op.is_constant() {
            return Ok((node, kind));
        }
        let value = run::constant(&node).map_err(|error| self.error(expr, error))?;
        Ok((Node { at, op: Op::Literal(value) }, kind))
    }

    fn all(&mut self, exprs: &'s [IdedExpr]) -> Result<Vec<Typed>, String> {
        exprs.iter().map(|expr| self.check(expr)).collect()
    }

    fn literal(&self, expr: &IdedExpr, literal: &LiteralValue) -> Result<(Value<'static>, Kind), String> {
        Ok(match literal {
            LiteralValue::Boolean(value) => (Value::Bool(*value.inner()), Kind::Bool),
            LiteralValue::Int(value) => (Value::Int(*value.inner()), Kind::Int),
            LiteralValue::UInt(value) => (Value::Uint(*value.inner()), Kind::Uint),
            LiteralValue::Double(value) => (Value::Double(*value.inner()), Kind::Double),
            LiteralValue::String(value) => (Value::made(value.inner().to_owned()), Kind::String),
            LiteralValue::Null => (Value::Null, Kind::Null),
            LiteralValue::Bytes(_) => {
                return Err(self.error(expr, "nothing here is of type bytes; write a string"));
            }
        })
    }

    fn name(&mut self, expr: &IdedExpr, name: &str) -> Result<(Op, Kind), String> {
        if let Some(slot) = self.locals.iter().rposition(|(local, _)| *local == name) {
            return Ok((Op::Local(slot), self.locals[slot].1.clone()));
        }
        if let Some(variable) = variables().iter().find(|variable| variable.name == name) {
            return self.variable(expr, variable);
        }
        if let Some(name) = TYPES.iter().find(|known| **known == name) {
            return Ok((Op::Literal(Value::Type(name)), Kind::Type));
        }
        let fields: Vec<_> = variables()
            .iter()
            .filter(|variable| variable.is_field_of(name))
            .map(|field| field.name)
            .collect();
        if !fields.is_empty() {
            let fields = fields.join(", ");
            return Err(self.error(expr, format!("`{name}` is no value of its own; there is {fields}")));
        }
        let known = variables().iter().filter(|variable| variable.phases.contains(&self.phase));
        let known = known.map(|variable| -> &str { variable.root() });
        let known: Vec<&str> = known.chain(self.locals.iter().map(|(local, _)| *local)).collect();
        Err(self.error(expr, format!("unknown variable `{name}`{}", nearest(name, known.into_iter()))))
    }

    fn variable(&mut self, expr: &IdedExpr, variable: &'static Variable) -> Result<(Op, Kind), String> {
        if !variable.phases.contains(&self.phase) {
            let phases: Vec<_> = variable.phases.iter().copied().map(phase_name).collect();
            let (name, here) = (variable.name, phase_name(self.phase));
            let text =
                format!("`{name}` is known in phase {}, and this rule is of phase {here}", phases.join(", "));
            return Err(self.error(expr, text));
        }
        self.uses.insert(variable.root());
        Ok((Op::Variable(variable.input), variable.typed()))
    }

    fn select(&mut self, expr: &'s IdedExpr, select: &'s SelectExpr) -> Result<(Op, Kind), String> {
        let field = select.field.as_str();
        if let Some((op, kind)) = self.field(expr, &select.operand, field)? {
            // A field of ours is always there.
            return Ok(if select.test { (Op::Literal(Value::Bool(true)), Kind::Bool) } else { (op, kind) });
        }
        let (operand, kind) = self.check(&select.operand)?;
        let member = match kind {
            Kind::Dyn => Kind::Dyn,
            Kind::Map(value) => value.map_or(Kind::Dyn, |value| *value),
            other => return Err(self.error(expr, format!("a value of type {other} has no member `{field}`"))),
        };
        let (operand, field) = (Box::new(operand), field.into());
        Ok(if select.test {
            (Op::Has(operand, field), Kind::Bool)
        } else {
            (Op::Select(operand, field), member)
        })
    }

    /// A field of a variable that is no value of its own, such as `agent`; `None` where there is no such variable.
    fn field(&mut self, expr: &IdedExpr, of: &IdedExpr, field: &str) -> Result<Option<(Op, Kind)>, String> {
        let Expr::Ident(root) = &of.expr else { return Ok(None) };
        let fields = || variables().iter().filter(|variable| variable.is_field_of(root));
        if self.locals.iter().any(|(local, _)| local == root) || fields().next().is_none() {
            return Ok(None);
        }
        let name = |variable: &Variable| &variable.name[root.len() + 1..];
        match fields().find(|variable| name(variable) == field) {
            Some(variable) => self.variable(expr, variable).map(Some),
            None => Err(self.error(
                expr,
                format!("`{root}` has no field `{field}`{}", nearest(field, fields().map(name))),
            )),
        }
    }

    fn map(&mut self, map: &'s MapExpr) -> Result<(Op, Kind), String> {
        let mut members = Vec::new();
        let mut of: Option<Kind> = None;
        for entry in &map.entries {
            // Fields are of messages, which are refused before.
            let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
            let (key, kind) = self.check(&entry.key)?;
            if !kind.fits(&Kind::String) {
                return Err(self
                    .error(&entry.key, format!("names of members are strings, and this is of type {kind}")));
            }
            let (value, kind) = self.check(&entry.value)?;
            of = Some(of.map_or(kind.clone(), |of| of.join(kind)));
            members.push((key, value));
        }
        Ok((Op::Map(members.into()), Kind::map_to(of.unwrap_or(Kind::Dyn))))
    }

    fn call(&mut self, expr: &'s IdedExpr, call: &'s CallExpr) -> Result<(Op, Kind), String> {
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, then, otherwise]) => {
                let condition = self.expect_bool(condition)?;
                let (then, left) = self.check(then)?;
                let (otherwise, right) = self.check(otherwise)?;
                if !left.fits(&right) {
                    let text = format!("`? :` gives {left} or {right}; make them the same, or use dyn()");
                    return Err(self.error(expr, text));
                }
                Ok((Op::Choose(Box::new([condition, then, otherwise])), left.join(right)))
            }
            (name @ (operators::LOGICAL_AND | operators::LOGICAL_OR), [left, right]) => {
                let sides = Box::new([self.expect_bool(left)?, self.expect_bool(right)?]);
                Ok((Op::Logic { decides: name == operators::LOGICAL_OR, sides }, Kind::Bool))
            }
            (operators::LOGICAL_NOT, [operand]) => {
                Ok((Op::Not(Box::new(self.expect_bool(operand)?)), Kind::Bool))
            }
            (operators::NEGATE, [operand]) => {
                let (operand, kind) = self.check(operand)?;
                match kind {
                    Kind::Int | Kind::Double | Kind::Dyn => Ok((Op::Negate(Box::new(operand)), kind)),
                    other => Err(self.error(expr, format!("there is no `-` of {other}"))),
                }
            }
            (operators::INDEX, [of, index]) => self.index(expr, of, index),
            (name, [left, right]) if let Some(binary) = operator::named(name) => {
                let (left, left_kind) = self.check(left)?;
                let (right, right_kind) = self.check(right)?;
                let kind = operator::result(binary, &left_kind, &right_kind).ok_or_else(|| {
                    let hint = if left_kind.is_number() && right_kind.is_number() {
                        "; convert one with int(), uint() or double()"
                    } else {
                        ""
                    };
                    let sign = binary.sign();
                    self.error(expr, format!("there is no {left_kind} {sign} {right_kind}{hint}"))
                })?;
                Ok((Op::Binary(binary, Box::new([left, right])), kind))
            }
            _ => self.function(expr, call),
        }
    }

    fn expect_bool(&mut self, expr: &'s IdedExpr) -> Result<Node, String> {
        let (node, kind) = self.check(expr)?;
        if kind.fits(&Kind::Bool) {
            return Ok(node);
        }
        Err(self.error(expr, format!("a bool is needed here, and this is of type {kind}")))
    }

    fn index(
        &mut self,
        expr: &IdedExpr,
        of: &'s IdedExpr,
        index: &'s IdedExpr,
    ) -> Result<(Op, Kind), String> {
        let (of, of_kind) = self.check(of)?;
        let (index, index_kind) = self.check(index)?;
        let is_number = index_kind.is_number() || index_kind == Kind::Dyn;
        let (element, fits) = match &of_kind {
            Kind::Dyn => (None, is_number || index_kind == Kind::String),
            Kind::List(element) => (element.as_deref(), is_number),
            Kind::Map(value) => (value.as_deref(), index_kind.fits(&Kind::String)),
            _ => (None, false),
        };
        if !fits {
            return Err(self.error(expr, format!("there is no {of_kind}[{index_kind}]")));
        }
        let kind = element.cloned().unwrap_or(Kind::Dyn);
        Ok((Op::Index(Box::new([of, index])), kind))
    }

    fn function(&mut self, expr: &'s IdedExpr, call: &'s CallExpr) -> Result<(Op, Kind), String> {
        if let Some(form) = functions::macro_form(&call.func_name) {
            return Err(self.error(expr, format!("write `{}` as {form}", call.func_name)));
        }
        let exprs: Vec<_> = call.target.as_deref().into_iter().chain(&call.args).collect();
        let mut nodes = Vec::new();
        let mut kinds = Vec::new();
        for expr in &exprs {
            let (node, kind) = self.check(expr)?;
            nodes.push(node);
            kinds.push(kind);
        }
        let (function, kind) = functions::find(&call.func_name, call.target.is_some(), &kinds)
            .map_err(|error| self.error(expr, error))?;
        // A pattern or a time zone from a message would have to be compiled for each, and an agent would choose it.
        let written = |index: usize, what: &str| match nodes.get(index).map(|node| &node.op) {
            Some(Op::Literal(Value::Text(text))) => Ok(text.clone()),
            _ => Err(self.error(exprs[index], format!("{what} must be written here, not computed"))),
        };
        let op = match (function, kinds.len()) {
            (Function::Matches, _) => {
                let pattern = self.pattern(exprs[1], &written(1, "a pattern")?)?;
                nodes.truncate(1);
                Op::Matches(Box::new(nodes.remove(0)), pattern)
            }
            (Function::Part(part), 1) => Op::Part(part, Box::new(nodes.remove(0)), TimeZone::UTC),
            (Function::Part(part), _) => {
                let zone = times::zone(written(1, "a time zone")?.as_str());
                let zone = zone.map_err(|error| self.error(exprs[1], error))?;
                nodes.truncate(1);
                Op::Part(part, Box::new(nodes.remove(0)), zone)
            }
            _ => Op::Call(function, nodes.into()),
        };
        Ok((op, kind))
    }

    fn pattern(&self, expr: &IdedExpr, pattern: &Text<'_>) -> Result<regex::Regex, String> {
        let pattern = RegexBuilder::new(pattern.as_str()).size_limit(MAX_PATTERN).build();
        pattern.map_err(|error| self.error(expr, format!("bad pattern: {error}")))
    }

    /// What the macros `all`, `exists`, `exists_one`, `map` and `filter` become in the parser; nothing else does.
    fn comprehension(
        &mut self,
        expr: &IdedExpr,
        macro_: &'s ComprehensionExpr,
    ) -> Result<(Op, Kind), String> {
        let (range, kind) = self.check(&macro_.iter_range)?;
        let element = match kind {
            Kind::Dyn => Kind::Dyn,
            Kind::List(element) => element.map_or(Kind::Dyn, |element| *element),
            // Names of members.
            Kind::Map(_) => Kind::String,
            other => {
                let text = format!("a list or a map is needed here, and this is of type {other}");
                return Err(self.error(&macro_.iter_range, text));
            }
        };
        self.locals.push((&macro_.iter_var, element));
        let body = self.body(expr, macro_);
        self.locals.pop();
        Ok(match body? {
            Body::Fold(fold, body) => (Op::Fold(fold, Box::new([range, body])), Kind::Bool),
            Body::Collect(guard, element, kind) => {
                let op = Op::Collect {
                    range: Box::new(range),
                    guard: guard.map(Box::new),
                    element: Box::new(element),
                };
                (op, Kind::list_of(kind))
            }
        })
    }

    /// Tells the macros apart by their step.
    fn body(&mut self, expr: &IdedExpr, macro_: &'s ComprehensionExpr) -> Result<Body, String> {
        match step_of(macro_) {
            Some(Step::Fold(fold, body)) => Ok(Body::Fold(fold, self.expect_bool(body)?)),
            Some(Step::Collect(guard, element)) => {
                let guard = guard.map(|guard| self.expect_bool(guard)).transpose()?;
                let (element, kind) = self.check(element)?;
                Ok(Body::Collect(guard, element, kind))
            }
            None => Err(self.error(expr, "this macro is not known here")),
        }
    }

    fn at(&self, expr: &IdedExpr) -> u32 {
        self.source.offset_for(expr.id).map_or(0, |(start, _)| start)
    }

    fn error(&self, expr: &IdedExpr, text: impl Into<String>) -> String {
        format!("{}: {}", place(&self.source.source, self.at(expr)), text.into())
    }
}

/// What a macro does with each element.
enum Body {
    Fold(Fold, Node),
    Collect(Option<Node>, Node, Kind),
}

/// Types as values, for `type(x) == int`.
const TYPES: &[&str] = &["bool", "int", "uint", "double", "string", "list", "map", "null_type", "type"];
