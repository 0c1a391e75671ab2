//! What a JSON value is for, as far as that decides which of its spellings are the same: the keywords of JSON Schema
//! (2020-12 and draft-07), and some members of MCP.

/// Where a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Just JSON: lists are in order, names are names.
    Plain,
    /// `inputSchema` or `outputSchema` of a tool.
    RootSchema,
    /// A schema, or a list of schemas in order.
    Schema,
    /// A list of schemas without order.
    SchemaSet,
    /// An object whose members, of any name, are schemas.
    Schemas,
    /// A list of values without order.
    Set,
    /// An object whose members, of any name, are lists without order.
    Sets,
    /// An object whose members, of any name, are schemas or lists without order (`dependencies` of draft-07).
    Dependencies,
    /// One of these.
    Dependency,
    /// `$schema` at the root of a schema.
    Dialect,
    /// `x-mcp-header` of a schema.
    Header,
    /// `execution` of a tool.
    Execution,
    /// `taskSupport` in there.
    TaskSupport,
}

impl Place {
    /// Where the members of this name are, in an object that stands here.
    pub(super) fn of_member(self, name: &str) -> Place {
        match self {
            Place::RootSchema if name == "$schema" => Place::Dialect,
            Place::RootSchema | Place::Schema | Place::Dependency => keyword(name),
            Place::Schemas => Place::Schema,
            Place::Sets => Place::Set,
            Place::Dependencies => Place::Dependency,
            Place::Execution if name == "taskSupport" => Place::TaskSupport,
            _ => Place::Plain,
        }
    }

    /// Where the elements are, in a list that stands here.
    pub(super) fn of_element(self) -> Place {
        match self {
            Place::Schema | Place::SchemaSet => Place::Schema,
            _ => Place::Plain,
        }
    }

    /// Whether a list that stands here has no order.
    pub(super) fn is_set(self) -> bool {
        matches!(self, Place::Set | Place::SchemaSet | Place::Dependency)
    }

    /// Whether servers say it in some revisions of the protocol only.
    pub(super) fn depends_on_revision(self) -> bool {
        matches!(self, Place::Dialect | Place::Header)
    }

    /// Whether this member means the same as none. `value` is in canonical form.
    pub(super) fn equals_none(self, value: &str) -> bool {
        match self {
            // The one that is meant where none is named, with or without an empty fragment.
            Place::Dialect => matches!(value.strip_prefix(DIALECT), Some("\"" | "#\"")),
            Place::TaskSupport => matches!(value, "\"forbidden\"" | "null"),
            Place::Execution => value == "{}",
            _ => false,
        }
    }
}

const DIALECT: &str = concat!("\"https:", "//json-schema.org/draft/2020-12/schema");

fn keyword(name: &str) -> Place {
    match name {
        "required" | "enum" | "type" => Place::Set,
        "anyOf" | "oneOf" | "allOf" => Place::SchemaSet,
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => Place::Schemas,
        "dependentRequired" => Place::Sets,
        "dependencies" => Place::Dependencies,
        "items"
        | "prefixItems"
        | "additionalItems"
        | "unevaluatedItems"
        | "contains"
        | "additionalProperties"
        | "unevaluatedProperties"
        | "propertyNames"
        | "not"
        | "if"
        | "then"
        | "else"
        | "contentSchema" => Place::Schema,
        "x-mcp-header" => Place::Header,
        // `default`, `const`, `examples`, and whatever is not known.
        _ => Place::Plain,
    }
}
