//! The primitives that the exactness of stops rests on (see [`crate::gate`]): what the standard library, tokio and
//! arc-swap have. With the feature `loom` they are stand-ins that a model drives through every interleaving.

#[cfg(feature = "loom")]
mod modelled;

#[cfg(not(feature = "loom"))]
pub use arc_swap::{ArcSwap, Guard};
#[cfg(not(feature = "loom"))]
pub use std::sync::{Mutex, MutexGuard};
#[cfg(not(feature = "loom"))]
pub use tokio::sync::Notify;

#[cfg(feature = "loom")]
pub use self::modelled::{ArcSwap, Guard, Notify};
#[cfg(feature = "loom")]
pub use loom::sync::{Mutex, MutexGuard};
