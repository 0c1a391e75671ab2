//! The file that alone says what is trusted, read at the start and whenever it changes. A bad one changes nothing: what
//! was read last stays, and the mistake is loud in the log and in `interlock status`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use tracing::{error, info};

use super::{Authority, Baseline};

/// Keeps what is trusted in line with a file.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    last: Mutex<Last>,
}

/// What was read last, good or bad.
#[derive(Debug, Default)]
struct Last {
    text: String,
    error: Option<String>,
}

impl Source {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// Name the file, the line and the remedy.
    pub fn load(path: &Path) -> Result<(Source, Arc<Authority>)> {
        let text = read(path)?;
        let authority = parse(&text, path)?;
        let last = Mutex::new(Last { text, error: None });
        Ok((Source { path: path.to_owned(), last }, authority))
    }

    /// Reads it again if it says something else than when it was read last.
    pub fn reload_if_changed(&self, baseline: &Baseline) {
        let text = read(&self.path);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // An unreadable file is a change too, once.
        if last.text == text.as_deref().unwrap_or_default() {
            return;
        }
        text.as_deref().unwrap_or_default().clone_into(&mut last.text);
        last.error = match text.and_then(|text| parse(&text, &self.path)) {
            Ok(authority) => {
                info!(file = %self.path.display(), "what is trusted was read again");
                baseline.set_authority(Some(authority));
                None
            }
            Err(fault) => {
                let error = format!("{fault:#}");
                error!(error, "what is trusted was not read again; what was read last holds");
                Some(error)
            }
        };
    }

    /// Why the file as it is now does not hold.
    pub fn error(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).error.clone()
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn parse(text: &str, path: &Path) -> Result<Arc<Authority>> {
    Ok(Arc::new(Authority::parse(text).map_err(|fault| anyhow!("{}: {fault}", path.display()))?))
}
