"""Links between two hosts of its own, on which packets get lost, come twice, come late, or not at all.

    link.py SEED [LINKS]

Makes two network namespaces with an interface for each link (one, unless it says otherwise), 10.77.0.1 and 10.77.0.2, then
10.78.0.1 and so on, and carries packets between them. Prints the processes that hold the namespaces, for nsenter, and then
does what it reads, a line each:

    faults LOST TWICE LATE    of 1000 packets, so many each
    down [LINK]               that link, from 0, or all: carries nothing
    up [LINK]                 carries packets again

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


def host(number, links):
    """A process in a namespace of its own, and its ends of the links."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET) != 0:
            sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
        subprocess.run("ip link set lo up".split(), check=True)
        tuns = []
        for link in range(links):
            name = f"link{link}"
            tuns.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
            fcntl.ioctl(tuns[-1], TUNSETIFF, struct.pack("16sH14s", name.encode(), IFF_TUN | IFF_NO_PI, b""))
            for words in [f"addr add 10.{77 + link}.0.{number}/24 dev {name}", f"link set {name} up"]:
                subprocess.run(["ip", *words.split()], check=True)
        socket.send_fds(theirs, [b"x"], tuns)
        for tun in tuns:
            os.close(tun)
        theirs.recv(1)  # until the other process ends
        os._exit(0)
    theirs.close()
    message, fds, _, _ = socket.recv_fds(ours, 1, links)
    if not message:
        sys.exit("no namespace")
    return pid, fds, ours


def main():
    dice = random.Random(int(sys.argv[1]))
    links = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    hosts = [host(1, links), host(2, links)]
    print(*(pid for pid, _, _ in hosts), flush=True)
    ways = []  # from an end to the other one, over that link
    for link, (one, other) in enumerate(zip(hosts[0][1], hosts[1][1])):
        ways += [(one, other, link), (other, one, link)]
    ends = [end for end, _, _ in ways]
    is_up, faults, late, count, pending = [True] * links, (0, 0, 0), [], 0, b""
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
                    for link in map(int, numbers or range(links)):
                        is_up[link] = word == "up"
                print("done", flush=True)
        while late and late[0][0] <= time.monotonic():
            _, _, to, link, packet = heapq.heappop(late)
            if is_up[link]:
                carry(to, packet)
        for end, to, link in ways:
            if end not in ready:
                continue
            for _ in range(64):
                try:
                    packet = os.read(end, 65536)
                except BlockingIOError:
                    break
                roll = dice.randrange(1000)
                lost, twice, delayed = faults
                if not is_up[link] or roll < lost:
                    continue
                if roll < lost + twice:
                    carry(to, packet)
                if roll >= 1000 - delayed:
                    count += 1
                    heapq.heappush(late, (time.monotonic() + LATE_S, count, to, link, packet))
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
