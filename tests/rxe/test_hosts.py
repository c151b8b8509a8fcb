"""Hosts whose kernels do not come up, by a program in the place of QEMU."""

import os
import pathlib
import subprocess
import tempfile
import unittest

HOSTS = pathlib.Path(__file__).with_name("hosts")
UNABLE = 77

# Ends the first times, as a kernel does that gives up, and takes commands from then on, as a host does.
QEMU = r"""#!/bin/bash
[[ $* =~ " host="([0-9]) ]] && n=${BASH_REMATCH[1]}
echo >>"$RXE_TEST/starts$n"
if (($(wc -l <"$RXE_TEST/starts$n") <= RXE_TEST_PANICS && n == 2)); then
  [[ $* =~ "-serial file:"([^ ]+) ]] && echo "Kernel panic - not syncing" >"${BASH_REMATCH[1]}"
  exit 0
fi
ip addr add "10.77.0.1$n/24" dev br0
exec socat TCP-LISTEN:2222,bind="10.77.0.1$n",fork,reuseaddr EXEC:/bin/bash,stderr
"""


class Start(unittest.TestCase):
    def setUp(self):
        installed = subprocess.run([HOSTS, "install"], capture_output=True, text=True)
        if installed.returncode == UNABLE:
            self.skipTest(installed.stderr.strip())
        self.assertEqual(installed.returncode, 0, installed.stderr)
        folder = tempfile.TemporaryDirectory(prefix="qpair-hosts-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        qemu = self.folder / "qemu-system-x86_64"
        qemu.write_text(QEMU)
        qemu.chmod(0o755)
        self.environment = dict(
            os.environ,
            PATH=f"{self.folder}:{os.environ['PATH']}",
            RXE_STATE=str(self.folder / "state"),
            RXE_ACCEL="tcg",
            RXE_TEST=str(self.folder),
        )
        self.addCleanup(self.hosts, "down")

    def hosts(self, *arguments, panics=0):
        environment = dict(self.environment, RXE_TEST_PANICS=str(panics))
        return subprocess.run([HOSTS, *arguments], env=environment, capture_output=True, text=True, timeout=120)

    def starts(self, host):
        return len((self.folder / f"starts{host}").read_text().splitlines())

    def test_hosts_start_again_where_the_kernel_of_one_gives_up(self):
        up = self.hosts("up", "1", "2", panics=2)
        self.assertEqual(up.returncode, 0, up.stderr)
        self.assertEqual((self.starts(1), self.starts(2)), (3, 3))
        self.assertIn("Kernel panic", up.stderr)
        self.assertEqual(self.hosts("run", "2", "echo here").stdout, "here\n")

    def test_who_stays_says_once_that_they_are_up_and_ends_them(self):
        environment = dict(self.environment, RXE_TEST_PANICS="1")
        command = [HOSTS, "up", "--stay", "1", "2"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
            self.assertEqual(up.stdout.readline(), "up\n")
            self.assertEqual(self.hosts("run", "1", "echo here").stdout, "here\n")
            up.kill()
            self.assertEqual(up.stdout.read(), "")
        self.assertNotEqual(self.hosts("run", "-t", "1", "1", "echo here").returncode, 0)

    def test_after_three_tries_no_host_is_left_and_the_kernel_s_words_are_told(self):
        up = self.hosts("up", "1", "2", panics=9)
        self.assertEqual(up.returncode, 1, up.stderr)
        self.assertEqual(self.starts(2), 3)
        self.assertIn("Kernel panic", up.stderr)
        self.assertIn("did not start in 3 tries", up.stderr)
        self.assertFalse((self.folder / "state").exists())


if __name__ == "__main__":
    unittest.main()
