//! The functions an expression may call: names, types, and which one a call means.

use super::hint::nearest;
use super::kind::Kind;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Size,
    Contains,
    StartsWith,
    EndsWith,
    Matches,
    Part(Part),
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Timestamp,
    Duration,
    Dyn,
    TypeOf,
}

/// A part of a timestamp, or a duration in whole units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    FullYear,
    Month,
    DayOfYear,
    DayOfMonth,
    Date,
    DayOfWeek,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
}

struct Overload {
    name: &'static str,
    /// Called as `x.name(…)`; then `takes` begins with the type of `x`.
    member: bool,
    takes: &'static [Kind],
    gives: Kind,
    function: Function,
}

/// What a call of these types means, and the type it gives. Errors say what is wrong with the call, and what would be
/// right.
pub(super) fn find(name: &str, member: bool, given: &[Kind]) -> Result<(Function, Kind), String> {
    let named = || OVERLOADS.iter().filter(|overload| overload.name == name);
    if named().next().is_none() {
        let names =
            OVERLOADS.iter().map(|overload| overload.name).chain(MACROS.iter().map(|(name, _)| *name));
        return Err(format!("unknown function `{name}`{}", nearest(name, names)));
    }
    let there_is = || named().map(Overload::show).collect::<Vec<_>>().join(", ");
    let mut fitting = named().filter(|overload| overload.accepts(member, given));
    let Some(first) = fitting.next() else {
        return Err(format!("no {}; there is {}", show(name, member, given), there_is()));
    };
    let gives = fitting.fold(first.gives.clone(), |gives, other| gives.join(other.gives.clone()));
    Ok((first.function, gives))
}

/// How to write a macro; `None`: it is none.
pub(super) fn macro_form(name: &str) -> Option<&'static str> {
    MACROS.iter().find(|(known, _)| *known == name).map(|(_, form)| *form)
}

impl Overload {
    fn accepts(&self, member: bool, given: &[Kind]) -> bool {
        self.member == member
            && self.takes.len() == given.len()
            && given.iter().zip(self.takes).all(|(given, asked)| given.fits(asked))
    }

    fn show(&self) -> String {
        show(self.name, self.member, self.takes)
    }
}

fn show(name: &str, member: bool, kinds: &[Kind]) -> String {
    let list = |kinds: &[Kind]| kinds.iter().map(Kind::to_string).collect::<Vec<_>>().join(", ");
    match kinds.split_first() {
        Some((receiver, others)) if member => format!("{receiver}.{name}({})", list(others)),
        _ => format!("{name}({})", list(kinds)),
    }
}

const fn global(name: &'static str, takes: &'static [Kind], gives: Kind, function: Function) -> Overload {
    Overload { name, member: false, takes, gives, function }
}

const fn member(name: &'static str, takes: &'static [Kind], gives: Kind, function: Function) -> Overload {
    Overload { name, member: true, takes, gives, function }
}

const fn part(name: &'static str, takes: &'static [Kind], part: Part) -> Overload {
    member(name, takes, Kind::Int, Function::Part(part))
}

/// Calls that the parser takes for something else than a function, if they have this form.
const MACROS: &[(&str, &str)] = &[
    ("has", "has(args.a)"),
    ("all", "list.all(x, x > 1)"),
    ("exists", "list.exists(x, x > 1)"),
    ("exists_one", "list.exists_one(x, x > 1)"),
    ("filter", "list.filter(x, x > 1)"),
    ("map", "list.map(x, x.name), or list.map(x, x.price > 1, x.name)"),
];

const TEXT: &[Kind] = &[Kind::String];
const TEXTS: &[Kind] = &[Kind::String, Kind::String];
const TIME: &[Kind] = &[Kind::Timestamp];
const TIME_IN_ZONE: &[Kind] = &[Kind::Timestamp, Kind::String];
const SPAN: &[Kind] = &[Kind::Duration];

static OVERLOADS: &[Overload] = &[
    member("size", TEXT, Kind::Int, Function::Size),
    member("size", &[Kind::List(None)], Kind::Int, Function::Size),
    member("size", &[Kind::Map(None)], Kind::Int, Function::Size),
    global("size", TEXT, Kind::Int, Function::Size),
    global("size", &[Kind::List(None)], Kind::Int, Function::Size),
    global("size", &[Kind::Map(None)], Kind::Int, Function::Size),
    member("contains", TEXTS, Kind::Bool, Function::Contains),
    member("startsWith", TEXTS, Kind::Bool, Function::StartsWith),
    member("endsWith", TEXTS, Kind::Bool, Function::EndsWith),
    member("matches", TEXTS, Kind::Bool, Function::Matches),
    global("matches", TEXTS, Kind::Bool, Function::Matches),
    part("getFullYear", TIME, Part::FullYear),
    part("getFullYear", TIME_IN_ZONE, Part::FullYear),
    part("getMonth", TIME, Part::Month),
    part("getMonth", TIME_IN_ZONE, Part::Month),
    part("getDayOfYear", TIME, Part::DayOfYear),
    part("getDayOfYear", TIME_IN_ZONE, Part::DayOfYear),
    part("getDayOfMonth", TIME, Part::DayOfMonth),
    part("getDayOfMonth", TIME_IN_ZONE, Part::DayOfMonth),
    part("getDate", TIME, Part::Date),
    part("getDate", TIME_IN_ZONE, Part::Date),
    part("getDayOfWeek", TIME, Part::DayOfWeek),
    part("getDayOfWeek", TIME_IN_ZONE, Part::DayOfWeek),
    part("getHours", TIME, Part::Hours),
    part("getHours", TIME_IN_ZONE, Part::Hours),
    part("getHours", SPAN, Part::Hours),
    part("getMinutes", TIME, Part::Minutes),
    part("getMinutes", TIME_IN_ZONE, Part::Minutes),
    part("getMinutes", SPAN, Part::Minutes),
    part("getSeconds", TIME, Part::Seconds),
    part("getSeconds", TIME_IN_ZONE, Part::Seconds),
    part("getSeconds", SPAN, Part::Seconds),
    part("getMilliseconds", TIME, Part::Milliseconds),
    part("getMilliseconds", TIME_IN_ZONE, Part::Milliseconds),
    part("getMilliseconds", SPAN, Part::Milliseconds),
    global("bool", &[Kind::Bool], Kind::Bool, Function::Bool),
    global("bool", TEXT, Kind::Bool, Function::Bool),
    global("int", &[Kind::Int], Kind::Int, Function::Int),
    global("int", &[Kind::Uint], Kind::Int, Function::Int),
    global("int", &[Kind::Double], Kind::Int, Function::Int),
    global("int", TEXT, Kind::Int, Function::Int),
    global("int", TIME, Kind::Int, Function::Int),
    global("uint", &[Kind::Int], Kind::Uint, Function::Uint),
    global("uint", &[Kind::Uint], Kind::Uint, Function::Uint),
    global("uint", &[Kind::Double], Kind::Uint, Function::Uint),
    global("uint", TEXT, Kind::Uint, Function::Uint),
    global("double", &[Kind::Int], Kind::Double, Function::Double),
    global("double", &[Kind::Uint], Kind::Double, Function::Double),
    global("double", &[Kind::Double], Kind::Double, Function::Double),
    global("double", TEXT, Kind::Double, Function::Double),
    global("string", &[Kind::Bool], Kind::String, Function::Text),
    global("string", &[Kind::Int], Kind::String, Function::Text),
    global("string", &[Kind::Uint], Kind::String, Function::Text),
    global("string", &[Kind::Double], Kind::String, Function::Text),
    global("string", TEXT, Kind::String, Function::Text),
    global("string", TIME, Kind::String, Function::Text),
    global("string", SPAN, Kind::String, Function::Text),
    global("timestamp", TEXT, Kind::Timestamp, Function::Timestamp),
    global("timestamp", &[Kind::Int], Kind::Timestamp, Function::Timestamp),
    global("timestamp", TIME, Kind::Timestamp, Function::Timestamp),
    global("duration", TEXT, Kind::Duration, Function::Duration),
    global("duration", SPAN, Kind::Duration, Function::Duration),
    global("dyn", &[Kind::Dyn], Kind::Dyn, Function::Dyn),
    global("type", &[Kind::Dyn], Kind::Type, Function::TypeOf),
];
