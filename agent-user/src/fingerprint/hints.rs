//! What a tool's annotations say about its safety.

use serde::{Deserialize, Serialize};

/// The four hints of a tool's annotations, which are the server's word (MCP, `ToolAnnotations`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    pub read_only: bool,
    pub destructive: bool,
    pub idempotent: bool,
    pub open_world: bool,
}

impl Hints {
    pub(super) const NAMES: [&str; 4] =
        ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];

    /// From what is said, in the order of the names.
    pub(super) fn said([read_only, destructive, idempotent, open_world]: [Option<bool>; 4]) -> Hints {
        let read_only = read_only.unwrap_or(false);
        Hints {
            read_only,
            // Its default is for tools that are not read-only.
            destructive: destructive.unwrap_or(!read_only),
            idempotent: idempotent.unwrap_or(false),
            open_world: open_world.unwrap_or(true),
        }
    }

    /// Those that must be said, because they are not what is meant where nothing is said.
    pub(super) fn unusual(self) -> impl Iterator<Item = (&'static str, bool)> {
        let Hints { read_only, destructive, idempotent, open_world } = self;
        let usual = [false, !read_only, false, true];
        let all = Self::NAMES.into_iter().zip([read_only, destructive, idempotent, open_world]);
        all.zip(usual).filter_map(|((name, value), usual)| (value != usual).then_some((name, value)))
    }

    /// Each hint, with whether `true` promises more safety than `false`.
    pub(super) fn promises(self) -> [(&'static str, bool, bool); 4] {
        let [read_only, destructive, idempotent, open_world] = Self::NAMES;
        [
            (read_only, self.read_only, true),
            (destructive, self.destructive, false),
            (idempotent, self.idempotent, true),
            (open_world, self.open_world, false),
        ]
    }
}

impl Default for Hints {
    /// Those of a tool that says nothing.
    fn default() -> Hints {
        Hints::said([None; 4])
    }
}
