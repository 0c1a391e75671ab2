//! The C library's allocator, told to give large buffers back.

/// From this size on a buffer is a mapping of its own, and so the kernel's again as soon as it is dropped.
#[cfg(target_env = "gnu")]
const OWN_MAPPING: libc::c_int = 256 * 1024;

/// Left alone, glibc raises that size to the largest buffer that was ever dropped, up to 32 MiB, and then keeps large buffers
/// between small ones: after many large messages the daemon had three times what they held.
pub fn give_large_buffers_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator's, under its own lock. It fails only for one that is too large.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
    }
}
