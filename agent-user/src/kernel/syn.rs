//! The SYN of an accepted connection, by which the kernel side has told where the connection wants to go.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use agent_abi::{FlowKey, map_v4};

use super::netns;

/// Makes a listener keep the SYN of every connection with it until it is asked for ([`super::Maps::take_origin`]). Before it
/// listens: a connection without one leads nowhere.
pub fn keep(listener: BorrowedFd<'_>) -> io::Result<()> {
    let one: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&one)).map_err(io::Error::other)?;
    // SAFETY: `one` has as many bytes as `length` says.
    let result = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVE_SYN,
            (&raw const one).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Under which key `FLOWS` has an accepted connection. Can be asked once. `None`: the SYN was not kept, because the kernel
/// answered it with a SYN cookie, or it is none that the kernel side would have let out.
pub(super) fn key(socket: BorrowedFd<'_>) -> Option<FlowKey> {
    let mut syn = [0; LONGEST];
    let mut length = libc::socklen_t::try_from(syn.len()).ok()?;
    // SAFETY: `syn` has as many bytes as `length` says.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            syn.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return None;
    }
    parse(syn.get(..usize::try_from(length).ok()?)?, netns::cookie_of(socket).ok()?)
}

/// IP and TCP header with all options.
const LONGEST: usize = 60 + 60;
const IPV6_HEADER: usize = 40;
const IPPROTO_TCP: u8 = 6;

fn parse(syn: &[u8], netns: u64) -> Option<FlowKey> {
    let first = *syn.first()?;
    let (agent_addr, start) = if first >> 4 == 6 {
        // With headers between the two the kernel side lets nothing out.
        (*syn.get(8..)?.first_chunk()?, (*syn.get(6)? == IPPROTO_TCP).then_some(IPV6_HEADER)?)
    } else {
        (map_v4(*syn.get(12..)?.first_chunk()?), usize::from(first & 0x0f) * 4)
    };
    let tcp = syn.get(start..)?;
    let port = |at: usize| Some(u16::from_be_bytes(*tcp.get(at..)?.first_chunk()?));
    Some(FlowKey {
        netns,
        agent_addr,
        agent_port: port(0)?.into(),
        listen_port: port(2)?.into(),
        isn: u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?),
        _pad: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: [u8; 20] = [0x12, 0x34, 0, 80, 9, 8, 7, 6, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0];

    fn expected(agent_addr: [u8; 16]) -> Option<FlowKey> {
        let isn = 0x0908_0706;
        Some(FlowKey { netns: 3, agent_addr, agent_port: 0x1234, listen_port: 80, isn, _pad: 0 })
    }

    #[test]
    fn both_families_are_read_with_and_without_options() {
        for words in [5, 15] {
            let mut packet = vec![0; words * 4];
            packet[0] = 0x40 | u8::try_from(words).expect("small");
            packet[12..16].copy_from_slice(&[127, 0, 0, 9]);
            packet.extend(TCP);
            assert_eq!(parse(&packet, 3), expected(map_v4([127, 0, 0, 9])));
        }
        let mut packet = vec![0; IPV6_HEADER];
        (packet[0], packet[6], packet[23]) = (0x60, IPPROTO_TCP, 1);
        packet.extend(TCP);
        let mut addr = [0; 16];
        addr[15] = 1;
        assert_eq!(parse(&packet, 3), expected(addr));
        packet[6] = 43;
        assert_eq!(parse(&packet, 3), None, "a routing header");
    }

    #[test]
    fn cut_off_syn_has_no_key() {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet.extend(&TCP[..7]);
        for length in 0..packet.len() {
            assert_eq!(parse(&packet[..length], 3), None, "{length}");
        }
    }
}
