"""Tests of the parts that need no host: PYTHONPATH=benches/peers python3 -m unittest discover -s benches/rxe"""

import subprocess
import unittest
from unittest import mock

import pairs
import soft_roce
import tables
from processes import JobFailed


class Tables(unittest.TestCase):
    BANDWIDTH = (" Mtu             : 1024[B]\n"
                 " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
                 " 65536      500              31.38              30.00  \t\t   0.000480\n")
    LATENCY = (" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%\n"
               " 8       2000          35.54          87327.86      61.49    \t 1859.19     \t2824.79\t\t17977.56 \t\t78671.01\n")

    def test_the_right_column_is_read(self):
        self.assertEqual(tables.bandwidth(self.BANDWIDTH), 30.0)
        self.assertEqual(tables.latency(self.LATENCY), 61.49)
        text = "3000 round trips of 8 B: median 61.230 us, mean 99.010 us one way\n"
        self.assertEqual(tables.ping_pong(text), 61.23)

    def test_other_output_fails(self):
        for text in ("", "connection refused\n", self.BANDWIDTH * 2, self.LATENCY):
            with self.assertRaises(JobFailed, msg=text):
                tables.bandwidth(text)
        with self.assertRaises(JobFailed):
            tables.ping_pong("0 round trips\n")


class Pairs(unittest.TestCase):
    HOST = pairs.Host("/hosts", "/x/qpair", "/x/pingpong", "/x/ibverbs-pingpong")

    def groups(self):
        return {group.name: group for group in pairs.all_groups(self.HOST)}

    def test_both_programs_of_a_pair_get_the_same_options(self):
        for name, group in self.groups().items():
            ours, theirs = (job.command for job in group.jobs)
            if name == pairs.PING_PONG:
                self.assertEqual(ours.replace("pingpong", "ibverbs-pingpong"), theirs)
            else:
                self.assertEqual(ours.replace(f"qpair perf {name}", f"ib_{name.replace('-', '_')}"), theirs)

    def test_targets(self):
        def met(name, program, ratio):
            return self.groups()[name].points[0].target(program).is_met(ratio)

        for name in pairs.BANDWIDTH:
            self.assertTrue(met(name, "perftest", 0.97) and not met(name, "perftest", 0.969))
        for name in pairs.LATENCY:
            self.assertTrue(met(name, "perftest", 1.03) and not met(name, "perftest", 1.031))
        self.assertTrue(met(pairs.PING_PONG, "ibverbs", 1.0) and not met(pairs.PING_PONG, "ibverbs", 1.001))

    def test_each_run_has_a_port_of_its_own(self):
        scripts = []
        with mock.patch.object(pairs, "output_of", lambda command: scripts.append(command[-1]) or Tables.BANDWIDTH):
            job = self.groups()["write-bw"].jobs[0]
            self.assertEqual([job.run(), job.run()], [{"write-bw 64 KiB": 30.0}] * 2)
        self.assertNotEqual(*scripts)

    def run_on_host(self, server, client):
        # No port is listened at here: the wait for it ends when the server does.
        script = pairs.on_host(server, client, 1)
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20)

    def test_what_fails_on_the_host_fails_here_and_says_why(self):
        good = self.run_on_host("true", "echo measured")
        self.assertEqual((good.returncode, good.stdout), (0, "measured\n"))
        for server, client in (("sh -c 'echo no device; exit 3'", "true"), ("sh -c 'echo no device'", "false")):
            bad = self.run_on_host(server, client)
            self.assertNotEqual(bad.returncode, 0)
            self.assertIn("no device", bad.stdout)


class Described(unittest.TestCase):
    def test_the_crates_version_is_that_of_its_lock_file(self):
        self.assertRegex(soft_roce.crate("ibverbs"), r"^0\.9\.\d+$")
        self.assertIsNone(soft_roce.crate("no-such-crate"))


if __name__ == "__main__":
    unittest.main()
