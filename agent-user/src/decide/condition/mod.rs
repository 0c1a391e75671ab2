//! Conditions of rules: `when: 'args.amount > 1000'`, in CEL, the Common Expression Language (google/cel-spec,
//! `doc/langdef.md`).
//!
//! Parsed and checked once, when rules are loaded: a name that is not known, types that can never fit, a bad pattern or
//! a result that is not a bool are errors with a place. What is left for a message to show is JSON: a member that is
//! not there, or is of another type, is an error then, not false; `has(args.a)` asks first. As in CEL, one side of `&&`
//! or `||` that decides alone makes up for an error of the other.
//!
//! An agent chooses the JSON, so all that follows from it is bounded: one run takes at most [`MAX_STEPS`] steps, a JSON
//! text has at most 250,000 values, patterns take linear time and are written in the rule. What is over a bound is an
//! error as well.
//!
//! What differs from the language: no bytes, messages and optionals; keys of maps are strings; patterns and time zones
//! are literals; integers and doubles compare exactly.

mod calls;
mod check;
mod functions;
mod hint;
mod inputs;
mod json;
mod kind;
mod macros;
mod node;
mod operator;
mod run;
#[cfg(test)]
mod tests;
mod times;
mod value;
mod variables;

use std::collections::BTreeSet;

use cel::Env;

pub use self::inputs::Inputs;
pub use self::variables::{Variable, variables};

use self::hint::place;
use self::node::Node;
use self::run::{Failure, Run};
use super::policy::Phase;

/// How much one condition may do for one message: each part of an expression that is looked at is a step, and so are 16
/// bytes of text that are searched or compared.
pub const MAX_STEPS: u64 = 1_000_000;

/// Characters of an error of the parser that are shown: it may list all it would have taken.
const MAX_SAID: usize = 160;
/// Longer expressions are refused.
const MAX_TEXT: usize = 4096;

/// An expression that was checked.
#[derive(Debug)]
pub struct Condition {
    text: String,
    node: Node,
    uses: BTreeSet<&'static str>,
    constant: Option<bool>,
}

impl Condition {
    /// Parses and checks an expression for rules of this phase. Errors begin with `line:column`, say what is wrong and,
    /// for names, what may have been meant; also for an expression without variables that has no value.
    pub fn compile(text: &str, phase: Phase) -> Result<Condition, String> {
        if text.len() > MAX_TEXT {
            return Err(format!("1:1: {} bytes; give {MAX_TEXT} at most", text.len()));
        }
        let checked = with_large_stack(|| {
            let parser = Env::stdlib().with_optional_support(false);
            let program = parser.compile(text).map_err(|errors| first_error(text, &errors))?;
            check::check(program.expression(), program.source_info(), phase)
        })?;
        let mut condition =
            Condition { text: text.to_owned(), node: checked.node, uses: checked.uses, constant: None };
        if condition.uses.is_empty() {
            let subject = super::subject::Subject::default();
            condition.constant = Some(condition.holds(&Inputs::new(&subject))?);
        }
        Ok(condition)
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it looks at a variable, by the name of the whole: `agent`, not `agent.name`.
    pub fn uses(&self, variable: &str) -> bool {
        self.uses.contains(variable)
    }

    /// Its value where it uses no variable at all, so that no message makes a difference.
    pub fn constant(&self) -> Option<bool> {
        self.constant
    }

    /// Whether it holds for a message. The error begins with `line:column` and says what the message lacks or has too
    /// much of; it has no more than 64 characters of any text in the message.
    pub fn holds(&self, inputs: &Inputs<'_>) -> Result<bool, String> {
        Run::new(inputs).eval_bool(&self.node).map_err(|failure| match failure {
            Failure::Exhausted => {
                format!("1:1: stopped after {MAX_STEPS} steps: the message is too large for this condition")
            }
            Failure::Failed { at, text } => format!("{}: {text}", place(&self.text, at)),
        })
    }
}

/// The parser descends into nested expressions, at up to 40 KiB a level in a debug build.
fn with_large_stack<T: Send>(run: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    const STACK: usize = 64 << 20;
    std::thread::scope(|scope| {
        let parser = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        let parser = parser.map_err(|error| format!("1:1: no thread to parse it: {error}"))?;
        parser.join().unwrap_or_else(|_| Err("1:1: the parser failed".to_owned()))
    })
}

/// Of all the parser says the first; the rest follows from it.
fn first_error(text: &str, errors: &cel::ParseErrors) -> String {
    let Some(error) = errors.errors.first() else { return "1:1: no expression".to_owned() };
    let (line, column) = error.pos;
    // It counts columns from 0 in some errors and lines from 0 where it has no place.
    let (line, column) = (line.max(1), column.max(1));
    let said = match error.msg.as_str() {
        _ if text.trim().is_empty() => "an expression is missing".to_owned(),
        said if said.contains("Recursion limit") => format!("nested deeper than {}", check::MAX_DEPTH),
        said => said.replace('\n', " "),
    };
    let end = said.char_indices().nth(MAX_SAID).map_or(said.len(), |(end, _)| end);
    format!("{line}:{column}: {}", &said[..end])
}
