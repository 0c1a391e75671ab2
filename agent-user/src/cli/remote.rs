//! Which daemon a command is for: that of this host, or one on another machine.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;

use super::{Args, BadConfig, Command};
use crate::control::client::Client;
use crate::control::reach::Remote;

/// A daemon on another machine.
#[derive(Debug, ClapArgs)]
pub(super) struct RemoteArgs {
    /// Ask the daemon at `https://HOST[:PORT]` instead of this host's.
    #[arg(long, global = true, env = "INTERLOCK_REMOTE", value_name = "URL")]
    remote: Option<String>,
    /// With `--remote`: the CA of the daemon's certificate (PEM).
    #[arg(long, global = true, env = "INTERLOCK_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// With `--remote`: your certificate (PEM).
    #[arg(long, global = true, env = "INTERLOCK_CERT", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// With `--remote`: its private key (PEM).
    #[arg(long, global = true, env = "INTERLOCK_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
}

impl Args {
    /// The daemon this command is for.
    pub(super) fn client(&self) -> Result<Client> {
        let Some(url) = self.remote.remote.as_ref().filter(|_| self.command.asks_the_daemon()) else {
            return Ok(Client::new(&self.runtime_dir));
        };
        if let Some(command) = self.command.only_here() {
            bail!("interlock {command} works on the daemon's own host only: run it there, without --remote");
        }
        let file = |file: &Option<PathBuf>, name: &str| {
            let missing = || format!("--remote needs --{name} FILE (or INTERLOCK_{})", name.to_uppercase());
            file.clone().with_context(missing).context(BadConfig)
        };
        let RemoteArgs { ca, cert, key, .. } = &self.remote;
        let remote = Remote::parse(url, file(ca, "ca")?, file(cert, "cert")?, file(key, "key")?);
        Ok(Client::remote(remote.context(BadConfig)?))
    }
}

impl Command {
    fn asks_the_daemon(&self) -> bool {
        !matches!(
            self,
            Command::Run { .. }
                | Command::Policy { .. }
                | Command::Config { .. }
                | Command::Log { path: Some(_), .. }
        )
    }

    /// Its name, if it looks at files or processes of the host it runs on.
    fn only_here(&self) -> Option<&'static str> {
        match self {
            Command::Exec { .. } => Some("exec"),
            Command::Log { .. } => Some("log"),
            Command::Doctor => Some("doctor"),
            Command::Detach { .. } => Some("detach"),
            _ => None,
        }
    }
}
