//! What whole-program tests share.
