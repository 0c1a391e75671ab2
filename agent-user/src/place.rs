//! Where a daemon keeps what the command line needs to act without it. The daemon tells in its runtime folder; for one
//! that never ran since boot the configuration says the same.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::config::{CONFIG, Config};

/// Name of the file in the runtime folder.
const FILE: &str = "daemon.json";

/// The folders of one daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    pub pin_dir: PathBuf,
    pub state_dir: PathBuf,
}

impl Places {
    /// Tells the command line, which looks into the runtime folder.
    pub fn tell(&self, runtime_dir: &Path) -> Result<()> {
        let path = runtime_dir.join(FILE);
        let new = runtime_dir.join(format!(".{FILE}"));
        let write = || -> std::io::Result<()> {
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            fs::rename(&new, &path)
        };
        write().with_context(|| format!("write {}", path.display()))
    }

    /// Finds them: in this configuration, else as a daemon has told, else in the configuration of the host, where that
    /// is about the same runtime folder.
    pub fn find(config: Option<&Path>, runtime_dir: &Path) -> Result<Places> {
        if let Some(path) = config {
            return Config::load(path).map(Places::from);
        }
        let told = runtime_dir.join(FILE);
        match fs::read(&told) {
            Ok(bytes) => {
                return serde_json::from_slice(&bytes)
                    .with_context(|| format!("{} (give --config instead)", told.display()));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("read {}", told.display())),
        }
        if let Ok(config) = Config::load(Path::new(CONFIG))
            && config.runtime_dir == runtime_dir
        {
            return Ok(config.into());
        }
        bail!("{}: not there, so no daemon has run here since boot (give --config)", told.display())
    }
}

impl From<Config> for Places {
    fn from(config: Config) -> Places {
        Places { pin_dir: config.pin_dir, state_dir: config.state_dir }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_daemon_tells_is_found_and_a_configuration_beats_it() {
        let dir = tempfile::tempdir().unwrap();
        let error = Places::find(None, dir.path()).unwrap_err().to_string();
        assert!(error.contains("give --config"), "{error}");
        let places = Places { pin_dir: "/sys/fs/bpf/a".into(), state_dir: "/var/lib/a".into() };
        places.tell(dir.path()).unwrap();
        assert_eq!(Places::find(None, dir.path()).unwrap(), places);
        let config = dir.path().join("config.yaml");
        fs::write(&config, "version: 1\nstate_dir: /var/lib/b").unwrap();
        let found = Places::find(Some(&config), dir.path()).unwrap();
        assert_eq!(found.state_dir, Path::new("/var/lib/b"));
    }
}
