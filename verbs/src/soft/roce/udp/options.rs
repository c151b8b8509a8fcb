//! Socket options that rustix has not: what goes with each packet, segments, and the program that picks a socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::sockopt;

use super::{MANAGEMENT, MANAGEMENT_QPN, SLOTS};

/// Switches on what tells of each packet: the own address, traffic class, hop limit. `v6` if the socket is of IPv6; then it
/// is told of IPv4 too.
pub(super) fn tell_of_packets(socket: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    for option in [libc::IP_PKTINFO, libc::IP_RECVTOS, libc::IP_RECVTTL] {
        set(socket, libc::SOL_IP, option, 1)?;
    }
    if v6 {
        for option in [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT] {
            set(socket, libc::SOL_IPV6, option, 1)?;
        }
    }
    Ok(())
}

/// Takes packets of IPv6 without a UDP checksum, which Linux' rdma_rxe and many adapters send: their own CRC covers more.
pub(super) fn take_unsummed(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)
}

/// Sends packets of IPv6 without a UDP checksum.
#[cfg(test)]
pub(super) fn send_unsummed(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1)
}

/// Takes packets of a flow together, where the system does that.
pub(super) fn merge_packets(socket: BorrowedFd<'_>) {
    if let Err(error) = set(socket, libc::SOL_UDP, libc::UDP_GRO, 1) {
        tracing::debug!(%error, "UDP packets are received one by one");
    }
}

/// Has the kernel pick the socket of a group by the destination of a packet, as [`place_of`](super::place_of) does.
pub(super) fn pick_by_destination(socket: BorrowedFd<'_>) -> io::Result<()> {
    let step = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut steps = [
        // The word of the base header with the destination. Of a packet that has none it gives 0.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 4),
        step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xff_ffff),
        libc::sock_filter { jf: 1, ..step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, MANAGEMENT_QPN) },
        step(libc::BPF_RET | libc::BPF_K, MANAGEMENT),
        step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, SLOTS - 1),
        step(libc::BPF_RET | BPF_A, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Routers that packets may pass where they do not say it themselves.
pub(super) fn set_hop_limit(socket: BorrowedFd<'_>, v4: bool, limit: u8) -> io::Result<()> {
    let (level, option) = if v4 { (libc::SOL_IP, libc::IP_TTL) } else { (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS) };
    set(socket, level, option, i32::from(limit))
}

/// Room for what waits to be read. More than the system allows to all takes a privilege.
pub(super) fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    sockopt::set_socket_recv_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes))?;
    Ok(())
}

/// Room for what waits to go out.
pub(super) fn set_send_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    sockopt::set_socket_send_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes))?;
    Ok(())
}

fn set<T>(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: T) -> io::Result<()> {
    let from = std::ptr::from_ref(&value).cast();
    // SAFETY: the kernel reads as many bytes as `value` has. The callers, all in this file, give numbers, and a program
    // whose steps live until this returns; the kernel keeps a copy.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, from, size_of::<T>() as libc::socklen_t) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The result is what was computed; libc has no name for it.
const BPF_A: u32 = 0x10;

const _: () = assert!(SLOTS.is_power_of_two());
