//! What is trusted of the tools of servers, as the API server has it: what it told of last of each `ToolBaseline`.

use std::sync::Arc;

use serde_json::Value;

use super::held::{Content, Held, Name};
use crate::baseline::Document;

/// The baselines that nodes go by.
pub type Baselines = Held<Trusted>;

/// What one object trusts.
#[derive(Debug)]
pub struct Trusted(Arc<Document>);

impl Content for Trusted {
    const FILE: &'static str = "baselines.json";
    const MEMBERS: [&'static str; 2] = ["baselines", "servers"];
    const WHAT: &'static str = "baselines of the API server";

    fn kind(_: &Name) -> &'static str {
        "ToolBaseline"
    }

    fn compile(of: &Name, servers: &[Value]) -> Result<Trusted, String> {
        Document::of_object(&of.name, servers).map(|document| Trusted(Arc::new(document)))
    }
}

impl Baselines {
    /// Those in force, in order.
    pub fn documents(&self) -> Vec<Arc<Document>> {
        self.each(|_, trusted| trusted.0.clone())
    }
}
