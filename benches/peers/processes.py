"""Runs programs so that none is left behind."""

import os
import pathlib
import shlex
import signal
import socket
import subprocess
import time

TIMEOUT_SECONDS = 180


class JobFailed(Exception):
    """A program could not be started, failed, took too long, or printed something else than expected."""


def output_of(command, env=None):
    """Runs `command` and returns what it printed to stdout."""
    child = start(command, env, subprocess.PIPE)
    try:
        out, err = child.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise JobFailed(f"{shlex.join(command)}: took longer than {TIMEOUT_SECONDS} s") from None
    finally:
        end(child)
    if child.returncode != 0:
        last = (err.strip() or out.strip()).splitlines()[-1:]
        raise JobFailed(f"{shlex.join(command)}: exit status {child.returncode}: {' '.join(last)}")
    return out


def output_with_server(server, client, port, env=None):
    """Starts `server`, waits until it listens on `port`, and returns what `client` printed."""
    child = start(server, env, subprocess.DEVNULL)
    try:
        wait_for_listener(port, child)
        return output_of(client, env)
    finally:
        end(child)


def start(command, env, pipe):
    try:
        return subprocess.Popen(command, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=pipe,
                                stderr=pipe, text=True, start_new_session=True)
    except OSError as error:
        raise JobFailed(f"{command[0]}: {error.strerror}") from None


def end(child):
    """Ends the child and its process group: a launcher that is asked first ends its ranks itself."""
    for name in (None, signal.SIGTERM, signal.SIGKILL):
        try:
            if name:
                os.killpg(child.pid, name)
            child.wait(timeout=0.5 if name is None else 3)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    child.wait()
    for stream in (child.stdout, child.stderr):
        if stream:
            stream.close()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_listener(port, child):
    """By the kernel's table: a connection made to find out would be taken for the client."""
    deadline = time.monotonic() + 10
    while not listens(port):
        if child.poll() is not None:
            raise JobFailed(f"{shlex.join(child.args)}: ended at once, exit status {child.returncode}")
        if time.monotonic() > deadline:
            raise JobFailed(f"{shlex.join(child.args)}: does not listen on port {port}")
        time.sleep(0.01)


def listens(port):
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = pathlib.Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            _, local, _, state = row.split()[:4]
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


class LeftOvers:
    """Removes what killed peers leave in /dev/shm: files of theirs that are new, and that no process maps."""

    FOLDER = pathlib.Path("/dev/shm")
    PREFIXES = ("vader_segment", "ucx_shm", "ucx_posix", "mpich_", "mpich-", "sm_segment")

    def __enter__(self):
        self.before = self.present()
        return self

    def __exit__(self, *_):
        deadline = time.monotonic() + 2  # ranks that were ended need a moment
        while (mine := self.present() - self.before) and time.monotonic() < deadline:
            mapped = list(all_maps())
            for path in mine:
                if not any(str(path) in maps for maps in mapped):
                    path.unlink(missing_ok=True)
            time.sleep(0.05)

    def present(self):
        return {path for path in self.FOLDER.glob("*") if path.name.startswith(self.PREFIXES) and owned(path)}


def owned(path):
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False


def all_maps():
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            yield maps.read_text()
        except OSError:
            continue
