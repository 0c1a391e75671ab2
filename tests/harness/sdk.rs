//! The SDKs of the tests, and the clients built on them: how each one is started. `cargo xtask sdk` makes them ready.

use std::path::{Path, PathBuf};

/// An SDK that the tests have a server and a client of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    /// PyPI `mcp` before 2.0
    Py1,
    /// PyPI `mcp` 2.x
    Py2,
    /// npm `@modelcontextprotocol/sdk`
    Ts1,
    /// npm `@modelcontextprotocol/{server,client}` 2.x
    Ts2,
    /// The crate `rmcp`
    Rmcp,
}

/// What a client is told to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// `initialize`: 2025-11-25
    Legacy,
    /// `server/discover`: 2026-07-28 where the server has it
    Auto,
}

impl Sdk {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Py1, Self::Py2, Self::Ts1, Self::Ts2, Self::Rmcp];

    /// Whether it speaks 2026-07-28.
    pub fn is_modern(self) -> bool {
        matches!(self, Self::Py2 | Self::Ts2 | Self::Rmcp)
    }

    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Py1 => "py1",
            Self::Py2 => "py2",
            Self::Ts1 => "ts1",
            Self::Ts2 => "ts2",
            Self::Rmcp => "rmcp",
        }
    }

    /// The command of its server, without arguments.
    pub fn server(self) -> Vec<String> {
        match self {
            Self::Rmcp => vec![binary("mcp-server")],
            other => other.program("server"),
        }
    }

    /// The command of the server that has what the conformance suites ask for.
    pub fn conformance_server(self) -> Vec<String> {
        match self {
            Self::Rmcp => vec![binary("mcp-conformance")],
            other => other.program("conformance"),
        }
    }

    /// The command of the client that a conformance suite drives; the suite adds the URL of its server.
    pub fn conformance_client(self) -> Vec<String> {
        self.program("conformance_client")
    }

    /// The command of the server whose one tool, `research`, runs as a task (TypeScript SDK 1.x).
    pub fn task_server() -> Vec<String> {
        node("server_ts1_tasks")
    }

    fn program(self, role: &str) -> Vec<String> {
        let name = self.name();
        if matches!(self, Self::Py1 | Self::Py2) {
            return python(name, role);
        }
        node(&format!("{role}_{name}"))
    }
}

fn node(program: &str) -> Vec<String> {
    // Linked to beside node_modules; Node has to look for packages there, not where the link leads.
    let program = ready(target().join("sdk/node").join(format!("{program}.mjs")));
    let node = ready(target().join("sdk/node/node"));
    let flags = ["--preserve-symlinks", "--preserve-symlinks-main"].map(str::to_owned);
    [node].into_iter().chain(flags).chain([program]).collect()
}

/// A version of the official conformance suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// 0.1.x: revisions up to 2025-11-25
    Stable,
    /// 0.2 alpha: also 2026-07-28
    Next,
}

impl Suite {
    /// The command, without arguments.
    pub fn command(self) -> Vec<String> {
        vec![ready(target().join("sdk/node/node")), self.file("dist/index.js")]
    }

    /// A file of its package.
    pub fn file(self, name: &str) -> String {
        let package = match self {
            Self::Stable => "conformance-2025",
            Self::Next => "conformance-2026",
        };
        installed(&format!("{package}/{name}"))
    }
}

/// The command of npm `@modelcontextprotocol/server-everything`, which takes its port from `PORT`.
pub fn everything_server() -> Vec<String> {
    let program = installed("@modelcontextprotocol/server-everything/dist/index.js");
    vec![ready(target().join("sdk/node/node")), program, "streamableHttp".to_owned()]
}

/// The command of the A2A agent, without arguments (PyPI `a2a-sdk`).
pub fn a2a_server() -> Vec<String> {
    python("a2a", "server")
}

/// A file of the packages that are installed for the conformance suites.
fn installed(file: &str) -> String {
    ready(target().join("sdk/conformance/node_modules").join(file))
}

/// What an agent may be built on: an SDK itself, or a library that has one below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// An SDK's own client
    Sdk(Sdk),
    /// PyPI `fastmcp`
    FastMcp,
    /// PyPI `langchain-mcp-adapters`
    LangChain,
    /// PyPI `openai-agents`
    OpenAi,
    /// PyPI `a2a-sdk`: no MCP, but A2A
    A2a,
}

impl From<Sdk> for Client {
    fn from(sdk: Sdk) -> Self {
        Self::Sdk(sdk)
    }
}

impl Client {
    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sdk(sdk) => sdk.name(),
            Self::FastMcp => "fastmcp",
            Self::LangChain => "langchain",
            Self::OpenAi => "openai",
            Self::A2a => "a2a",
        }
    }

    /// The command, without arguments but the era.
    pub fn command(self, era: Era) -> Vec<String> {
        let mut command = match self {
            Self::Sdk(Sdk::Rmcp) => vec![binary("mcp-client")],
            Self::Sdk(sdk) => sdk.program("client"),
            library => python(library.name(), "client"),
        };
        assert!(self.eras().contains(&era), "{} cannot be told to speak {era:?}", self.name());
        if self.eras().len() > 1 {
            let mode = if era == Era::Auto { "auto" } else { "legacy" };
            command.extend(["--mode".to_owned(), mode.to_owned()]);
        }
        command
    }

    /// What it can be told to speak.
    fn eras(self) -> &'static [Era] {
        match self {
            Self::Sdk(sdk) if !sdk.is_modern() => &[Era::Legacy],
            Self::LangChain => &[Era::Legacy],
            Self::OpenAi | Self::A2a => &[Era::Auto],
            Self::Sdk(_) | Self::FastMcp => &[Era::Legacy, Era::Auto],
        }
    }
}

/// A Python program in the venv of that name.
fn python(name: &str, role: &str) -> Vec<String> {
    let python = ready(target().join("sdk").join(name).join("bin/python"));
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("sdk/{role}_{name}.py"));
    // -B: the sources stay clean of compiled files
    vec![python, "-B".to_owned(), program.display().to_string()]
}

/// A program of this package, or `interlock`, from where the tests were built.
pub fn binary(name: &str) -> String {
    // target/{debug,release}/deps/system-… → target/{debug,release}
    let test = std::env::current_exe().expect("the test has a path");
    let folder = test.ancestors().nth(2).expect("tests are built below target");
    let path = folder.join(name);
    assert!(path.exists(), "{} is missing: cargo build --workspace", path.display());
    path.display().to_string()
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
}

fn ready(path: PathBuf) -> String {
    assert!(path.exists(), "{} is missing: cargo xtask sdk", path.display());
    path.display().to_string()
}
