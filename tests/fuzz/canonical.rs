//! Random definitions, each in several spellings, and with one change.

use interlock::fingerprint::Surface;

use crate::random::Random;

/// A definition, and what it is compared with.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) surface: Surface,
    pub(crate) text: String,
    /// The same: members and sets in another order, other white space, escapes and numbers, explicit defaults.
    pub(crate) respelled: String,
    /// With one change: of a name, a value, the order of a list.
    pub(crate) changed: String,
}

impl Case {
    pub(crate) fn new(random: &mut Random) -> Case {
        let surface = Surface::ALL[random.below(Surface::ALL.len())];
        let value = definition(random, surface);
        let mut changed = value.clone();
        while changed == value {
            let at = random.below(value.size());
            changed.change(random, &mut (at + 1));
        }
        Case {
            surface,
            text: value.spell(&mut None),
            respelled: value.spell(&mut Some(random)),
            changed: changed.spell(&mut None),
        }
    }

    /// As one text, which [`Case::parse`] reads.
    pub(crate) fn print(&self) -> String {
        [self.surface.label(), &self.text, &self.respelled, &self.changed].join(SEPARATOR)
    }

    pub(crate) fn parse(text: &str) -> Case {
        let parts: Vec<String> = text.split(SEPARATOR).map(str::to_owned).collect();
        let [label, text, respelled, changed] = parts.try_into().expect("four parts");
        let surface = Surface::ALL.into_iter().find(|surface| surface.label() == label).expect("a surface");
        Case { surface, text, respelled, changed }
    }
}

/// No valid JSON has it.
const SEPARATOR: &str = "\n\u{1e}\n";

#[derive(Clone, Debug, PartialEq)]
enum Json {
    Null,
    Bool(bool),
    /// Digits, of which the last is no zero, and how many zeros follow them.
    Number(bool, String, i64),
    /// By UTF-16.
    Text(Vec<u16>),
    List(Vec<Json>),
    /// A list without order.
    Set(Vec<Json>),
    Object(Vec<Member>),
}

#[derive(Clone, Debug, PartialEq)]
struct Member {
    name: String,
    value: Json,
    /// May as well not be there.
    equals_none: bool,
}

fn object<const N: usize>(members: [(&str, Json); N]) -> Json {
    let member = |(name, value): (&str, Json)| Member { name: name.to_owned(), value, equals_none: false };
    Json::Object(members.into_iter().map(member).collect())
}

fn text(text: &str) -> Json {
    Json::Text(text.encode_utf16().collect())
}

const LETTERS: [&str; 12] =
    ["a", "b", " ", ". ", "\n", "\"", "\\", "/", "\u{e9}", "\u{200b}", "\u{fb33}", "\u{1f600}"];

fn any_text(random: &mut Random) -> Json {
    let mut units: Vec<u16> = random.text(&LETTERS, 8).encode_utf16().collect();
    if random.one_in(20) {
        units.push([0xd83d, 0xde00, 0xfffd][random.below(3)]);
    }
    Json::Text(units)
}

fn number(random: &mut Random) -> Json {
    if random.one_in(8) {
        return Json::Number(false, "0".to_owned(), 0);
    }
    let digits =
        format!("{}{}", random.text(&["1", "0", "9", "5"], 20).trim_start_matches('0'), 1 + random.below(9));
    let zeros = random.below(60) as i64 - 30;
    Json::Number(random.one_in(3), digits, if random.one_in(9) { zeros * 100_000_000_000 } else { zeros })
}

fn data(random: &mut Random, depth: usize) -> Json {
    match random.below(if depth == 0 { 4 } else { 6 }) {
        0 => Json::Null,
        1 => Json::Bool(random.one_in(2)),
        2 => number(random),
        3 => any_text(random),
        4 => Json::List((0..random.below(4)).map(|_| data(random, depth - 1)).collect()),
        _ => Json::Object(members(random, &NAMES, |_, random| data(random, depth - 1))),
    }
}

const NAMES: [&str; 12] = [
    "a",
    "b",
    "required",
    "enum",
    "properties",
    "default",
    "\u{fb33}",
    "\u{1f600}",
    "x-mcp-header",
    "type",
    "a/b~",
    "",
];
const KEYWORDS: [&str; 24] = [
    "type",
    "description",
    "required",
    "enum",
    "anyOf",
    "oneOf",
    "allOf",
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependentRequired",
    "dependencies",
    "items",
    "prefixItems",
    "not",
    "additionalProperties",
    "default",
    "const",
    "examples",
    "maximum",
    "x-mcp-header",
    "unknown",
];

/// Members of different names.
fn members(
    random: &mut Random,
    names: &[&str],
    mut value: impl FnMut(&str, &mut Random) -> Json,
) -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    for _ in 0..random.below(5) {
        let name = random.pick(names).to_owned();
        if members.iter().all(|member| member.name != name) {
            let value = value(&name, random);
            members.push(Member { name, value, equals_none: false });
        }
    }
    members
}

fn schema(random: &mut Random, depth: usize) -> Json {
    if depth == 0 || random.one_in(8) {
        return [Json::Bool(true), object([])][random.below(2)].clone();
    }
    let inner = |random: &mut Random| schema(random, depth - 1);
    Json::Object(members(random, &KEYWORDS, |name, random| match name {
        "type" if random.one_in(2) => text(random.pick(&["string", "number"])),
        "type" | "required" => Json::Set((0..random.below(4)).map(|_| any_text(random)).collect()),
        "enum" => Json::Set((0..random.below(4)).map(|_| data(random, 2)).collect()),
        "anyOf" | "oneOf" | "allOf" => Json::Set((0..random.below(4)).map(|_| inner(random)).collect()),
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
            Json::Object(members(random, &NAMES, |_, random| inner(random)))
        }
        "dependentRequired" | "dependencies" => Json::Object(members(random, &NAMES, |_, random| {
            if name == "dependencies" && random.one_in(2) {
                return inner(random);
            }
            Json::Set((0..random.below(4)).map(|_| any_text(random)).collect())
        })),
        "items" | "not" | "additionalProperties" => inner(random),
        "prefixItems" => Json::List((0..random.below(4)).map(|_| inner(random)).collect()),
        "description" | "x-mcp-header" => any_text(random),
        _ => data(random, 3),
    }))
}

fn definition(random: &mut Random, surface: Surface) -> Json {
    let things = |random: &mut Random, key: &str| {
        let thing =
            |random: &mut Random| object([(key, any_text(random)), ("description", any_text(random))]);
        Json::Set((0..random.below(4)).map(|_| thing(random)).collect())
    };
    let mut value = match surface {
        Surface::Instructions => return any_text(random),
        Surface::Tool => object([
            ("name", any_text(random)),
            ("description", any_text(random)),
            ("inputSchema", schema(random, 4)),
            ("outputSchema", schema(random, 2)),
        ]),
        Surface::Prompt => object([("name", any_text(random)), ("arguments", things(random, "name"))]),
        Surface::ResourceTemplate => object([("name", any_text(random)), ("uriTemplate", any_text(random))]),
        Surface::Server => object([("name", any_text(random)), ("version", any_text(random))]),
        Surface::AgentCard => object([
            ("skills", things(random, "id")),
            ("provider", object([("organization", any_text(random)), ("url", any_text(random))])),
        ]),
    };
    let Json::Object(members) = &mut value else { unreachable!("an object was made") };
    let mut add =
        |name: &str, value, equals_none| members.push(Member { name: name.to_owned(), value, equals_none });
    add("unknown", data(random, 3), false);
    add("title", any_text(random), false);
    if matches!(surface, Surface::AgentCard | Surface::Server) {
        return value;
    }
    add("icons", Json::Null, true);
    add("_meta", object([("ui", data(random, 2)), ("a", data(random, 2))]), false);
    if surface == Surface::Tool {
        let schema = concat!("https:", "//json-schema.org/draft/2020-12/schema");
        for member in members.iter_mut().filter(|member| member.name.ends_with("Schema")) {
            if let Json::Object(members) = &mut member.value {
                let name = "$schema".to_owned();
                members.push(Member { name, value: text(schema), equals_none: true });
            }
        }
        let (execution, annotations) = (execution(random), annotations(random));
        members.extend([execution, annotations]);
    }
    value
}

fn execution(random: &mut Random) -> Member {
    let equals_none = random.one_in(2);
    let value = object([("taskSupport", text(if equals_none { "forbidden" } else { "optional" }))]);
    Member { name: "execution".to_owned(), value, equals_none }
}

fn annotations(random: &mut Random) -> Member {
    let read_only = random.one_in(2);
    let usual = [
        ("readOnlyHint", false),
        ("destructiveHint", !read_only),
        ("idempotentHint", false),
        ("openWorldHint", true),
    ];
    let member = |(name, usual): (&str, bool)| {
        let value = if name == "readOnlyHint" { read_only } else { random.one_in(2) };
        Member { name: name.to_owned(), value: Json::Bool(value), equals_none: value == usual }
    };
    let mut members: Vec<Member> = usual.into_iter().map(member).collect();
    members.push(Member { name: "title".to_owned(), value: Json::Null, equals_none: true });
    members.push(Member { name: "other".to_owned(), value: data(random, 2), equals_none: false });
    Member { name: "annotations".to_owned(), value: Json::Object(members), equals_none: false }
}

impl Json {
    /// Values in it that may be changed.
    fn size(&self) -> usize {
        1 + match self {
            Json::List(values) | Json::Set(values) => values.iter().map(Json::size).sum(),
            Json::Object(members) => {
                members.iter().filter(|member| !member.equals_none).map(|member| member.value.size()).sum()
            }
            _ => 0,
        }
    }

    /// Changes the value that `left` counts down to.
    fn change(&mut self, random: &mut Random, left: &mut usize) {
        *left = left.saturating_sub(1);
        if *left > 0 {
            match self {
                Json::List(values) | Json::Set(values) => {
                    values.iter_mut().for_each(|value| value.change_if(random, left));
                }
                Json::Object(members) => {
                    let members = members.iter_mut().filter(|member| !member.equals_none);
                    members.for_each(|member| member.value.change_if(random, left));
                }
                _ => {}
            }
            return;
        }
        match self {
            Json::Null => *self = Json::Bool(false),
            Json::Bool(value) => *value = !*value,
            Json::Number(_, digits, _) => {
                let last = digits.pop().expect("a digit");
                digits.push(if last == '1' { '2' } else { '1' });
            }
            Json::Text(units) if units.is_empty() || random.one_in(2) => units.push(u16::from(b'z')),
            Json::Text(units) => {
                let at = random.below(units.len());
                units[at] = if units[at] == 0x78 { 0x79 } else { 0x78 };
            }
            Json::List(values) if values.len() > 1 && random.one_in(2) => {
                let (a, b) = (random.below(values.len()), random.below(values.len()));
                values.swap(a, b);
            }
            Json::List(values) | Json::Set(values) => match random.below(values.len() + 1) {
                at if at < values.len() => drop(values.remove(at)),
                _ => values.push(text("new")),
            },
            Json::Object(members) => {
                let mut known = members.iter_mut().filter(|member| !member.equals_none);
                match known.nth(random.below(4)) {
                    Some(member) => member.name += "new",
                    None => {
                        members.push(Member { name: "new".into(), value: Json::Null, equals_none: false })
                    }
                }
            }
        }
        *left = 0;
    }

    fn change_if(&mut self, random: &mut Random, left: &mut usize) {
        if *left > 0 {
            self.change(random, left);
        }
    }

    /// As JSON: plainly, or in any way.
    fn spell(&self, random: &mut Option<&mut Random>) -> String {
        let space = space(random);
        match self {
            Json::Null => "null".to_owned(),
            Json::Bool(value) => value.to_string(),
            Json::Number(negative, digits, zeros) => spell_number(*negative, digits, *zeros, random),
            Json::Text(units) => spell_text(units, random),
            Json::List(values) | Json::Set(values) => {
                let mut texts: Vec<String> = values.iter().map(|value| value.spell(random)).collect();
                if matches!(self, Json::Set(_)) {
                    shuffle(&mut texts, random);
                }
                format!("[{space}{}]", texts.join(&format!("{space},")))
            }
            Json::Object(members) => {
                let mut texts = Vec::new();
                for Member { name, value, equals_none } in members {
                    if !equals_none || random.as_mut().is_some_and(|random| random.one_in(2)) {
                        let name: Vec<u16> = name.encode_utf16().collect();
                        texts.push(format!(
                            "{}{space}:{space}{}",
                            spell_text(&name, random),
                            value.spell(random)
                        ));
                    }
                }
                shuffle(&mut texts, random);
                format!("{{{space}{}{space}}}", texts.join(&format!(",{space}")))
            }
        }
    }
}

fn space(random: &mut Option<&mut Random>) -> String {
    random.as_mut().map(|random| random.text(&[" ", "\t", "\n", "\r"], 2)).unwrap_or_default()
}

fn shuffle(texts: &mut [String], random: &mut Option<&mut Random>) {
    if let Some(random) = random {
        for at in 1..texts.len() {
            texts.swap(at, random.below(at + 1));
        }
    }
}

fn spell_number(negative: bool, digits: &str, zeros: i64, random: &mut Option<&mut Random>) -> String {
    let mut any = |most| random.as_mut().map_or(0, |random| random.below(most));
    let sign = if negative || digits == "0" && any(2) == 1 { "-" } else { "" };
    let digits = format!("{digits}{}", "0".repeat(any(4)));
    let added = digits.len() - digits.trim_end_matches('0').len();
    let zeros = if digits.trim_matches('0').is_empty() { any(9) as i64 } else { zeros - added as i64 };
    // The point stands before so many of the digits.
    let behind = any(digits.len() + 1);
    let (whole, fraction) = digits.split_at(digits.len() - behind);
    let whole = if whole.is_empty() { "0" } else { whole };
    let whole = if whole.trim_matches('0').is_empty() { "0" } else { whole };
    let point = if fraction.is_empty() { "" } else { "." };
    let exponent = zeros + behind as i64;
    let exponent = match (exponent, any(3)) {
        (0, 0 | 1) => String::new(),
        (_, 0) => format!("e{exponent}"),
        (_, 1) => format!("E{exponent:+}"),
        _ => format!("e{exponent:+05}"),
    };
    format!("{sign}{whole}{point}{fraction}{exponent}")
}

fn spell_text(units: &[u16], random: &mut Option<&mut Random>) -> String {
    let mut out = "\"".to_owned();
    for letter in char::decode_utf16(units.iter().copied()) {
        let escape = random.as_mut().is_some_and(|random| random.one_in(4));
        match letter {
            Ok('/') if escape => out += "\\/",
            Ok('\n') if escape => out += "\\n",
            Ok(letter) if !escape && letter >= ' ' && letter != '"' && letter != '\\' => out.push(letter),
            Ok(letter) => {
                let units = letter.encode_utf16(&mut [0; 2]).to_vec();
                units.iter().for_each(|unit| out += &format!("\\u{unit:04X}"));
            }
            Err(half) => out += &format!("\\u{:04x}", half.unpaired_surrogate()),
        }
    }
    out + "\""
}
