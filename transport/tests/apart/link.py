"""A link between two hosts of its own, on which packets get lost, come twice, come late, or not at all.

    link.py SEED

Makes two network namespaces with an interface each, 10.77.0.1 and 10.77.0.2, and carries packets between them. Prints the
processes that hold the namespaces, for nsenter, and then does what it reads, a line each:

    faults LOST TWICE LATE    of 1000 packets, so many each
    down                      carries nothing
    up                        carries packets again

It ends, and the namespaces with it, when its input does. Needs root and /dev/net/tun.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000
LATE_S = 0.003


def host(number):
    """A process in a namespace of its own, and its end of the link."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET) != 0:
            sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH14s", b"link0", IFF_TUN | IFF_NO_PI, b""))
        for words in ["link set lo up", f"addr add 10.77.0.{number}/24 dev link0", "link set link0 up"]:
            subprocess.run(["ip", *words.split()], check=True)
        socket.send_fds(theirs, [b"x"], [tun])
        os.close(tun)
        theirs.recv(1)  # until the other process ends
        os._exit(0)
    theirs.close()
    message, fds, _, _ = socket.recv_fds(ours, 1, 1)
    if not message:
        sys.exit("no namespace")
    return pid, fds[0], ours


def main():
    dice = random.Random(int(sys.argv[1]))
    hosts = [host(1), host(2)]
    print(*(pid for pid, _, _ in hosts), flush=True)
    ends = [end for _, end, _ in hosts]
    is_up, faults, late, count, pending = True, (0, 0, 0), [], 0, b""
    while True:
        wait = max(late[0][0] - time.monotonic(), 0) if late else None
        ready, _, _ = select.select([0, *ends], [], [], wait)
        if 0 in ready:
            read = os.read(0, 4096)
            if not read:
                break
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                word, *numbers = line.decode().split()
                if word == "faults":
                    faults = tuple(map(int, numbers))
                else:
                    is_up = word == "up"
                print("done", flush=True)
        while late and late[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(late)
            if is_up:
                carry(to, packet)
        for end, to in (ends, reversed(ends)):
            if end not in ready:
                continue
            for _ in range(64):
                try:
                    packet = os.read(end, 65536)
                except BlockingIOError:
                    break
                roll = dice.randrange(1000)
                lost, twice, delayed = faults
                if not is_up or roll < lost:
                    continue
                if roll < lost + twice:
                    carry(to, packet)
                if roll >= 1000 - delayed:
                    count += 1
                    heapq.heappush(late, (time.monotonic() + LATE_S, count, to, packet))
                else:
                    carry(to, packet)
    for pid, _, other in hosts:
        other.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def carry(to, packet):
    try:
        os.write(to, packet)
    except OSError:
        pass  # a full queue loses packets too


main()
