"""Tests of the parts that need no peer: python3 -m unittest discover -s benches/peers"""

import pathlib
import sys
import unittest
from unittest import mock

import compare
import groups
import hosts
import jobs
import outputs
import report
from processes import JobFailed, output_of


class Outputs(unittest.TestCase):
    UCX = ("iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
           " 200000,0.276,0.858,0.858,8.89,1000.00,1165701,1165701\n")

    def test_ucx(self):
        self.assertEqual(outputs.ucx_latency(self.UCX), 0.276)
        self.assertAlmostEqual(outputs.ucx_bandwidth(self.UCX), 1.048576)
        with self.assertRaises(JobFailed):
            outputs.ucx_latency("no answer\n")

    def test_collbench(self):
        text = "a warning, perhaps\noperation,ranks,bytes,us_median,us_min,us_max\nallreduce,2,1024,0.98,0.97,1.2\n"
        self.assertEqual(outputs.collbench(text), {1024: 0.98})
        with self.assertRaises(JobFailed):
            outputs.collbench("")

    def test_ucx_rate_is_a_time(self):
        self.assertAlmostEqual(outputs.ucx_nanoseconds(self.UCX), 1e9 / 1165701)
        self.assertAlmostEqual(outputs.ucx_rate(self.UCX), 1.165701)

    def test_libfabric(self):
        text = ("bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
                "8       20k     =20k     312k        0.20s      1.63       4.90       0.20\n")
        self.assertEqual(outputs.libfabric_latency(text), 4.9)
        with self.assertRaises(JobFailed):
            outputs.libfabric_latency("fi_getinfo: -61\n")

    # Lines as `qpair ... --json` prints them.
    LATENCY = ('{"test":"tag-lat","size":8,"operations":7,"typical_us":0.18,"min_us":0.1,"median_us":0.2,"p99_us":0.3,'
               '"max_us":9.5}\n')
    BANDWIDTH = ('{"test":"write-bw","size":65536,"operations":98,"depth":128,"signal_every":32,"mb_s":40000.5,'
                 '"mmsg_s":0.6,"mean_mb_s":32768.0,"memcpy_gb_s":44.0,"ratio":0.9}\n')
    POST_POLL = ('{"test":"post-poll","signal_every":1,"operations":1024,"min_ns":40.0,"median_ns":41.5,"p99_ns":50.0}\n'
                 '{"test":"post-poll","signal_every":64,"operations":1024,"min_ns":20.0,"median_ns":22.5,"p99_ns":30.0}\n')
    COLLECTIVE = ('{"collective":"all-reduce","size":8,"in_place":true,"time_us":0.5}\n'
                  '{"collective":"all-reduce","size":8,"in_place":false,"time_us":0.7}\n'
                  '{"collective":"all-reduce","size":1024,"in_place":true,"time_us":3}\n')

    def test_qpair(self):
        self.assertEqual(outputs.qpair_latency(self.LATENCY), (0.18, 0.2))
        self.assertEqual(outputs.qpair_bandwidth(self.BANDWIDTH), 32.768)
        self.assertEqual(outputs.qpair_rate(self.BANDWIDTH), 0.5)
        self.assertEqual(outputs.qpair_post_poll(self.POST_POLL), {1: 41.5, 64: 22.5})
        self.assertEqual(outputs.qpair_collective(self.COLLECTIVE, True), {8: 0.5, 1024: 3.0})

    def test_the_placement_of_a_collective_is_chosen(self):
        text = '{"size":8,"in_place":false,"time_us":0.5}\n{"size":8,"in_place":true,"time_us":3}\n'
        self.assertEqual(outputs.qpair_collective(text, False), {8: 0.5})
        self.assertEqual(outputs.qpair_collective(text, True), {8: 3.0})
        with self.assertRaisesRegex(JobFailed, "no row in place"):
            outputs.qpair_collective(text.splitlines()[0], True)

    def test_other_output_of_qpair_fails(self):
        for text in ("", "error", "3", '{"size": 1024}', self.LATENCY * 2):
            with self.assertRaises(JobFailed, msg=text):
                outputs.qpair_latency(text)


class Targets(unittest.TestCase):
    def groups(self, quick):
        tools = jobs.Tools(pathlib.Path("/none"), pathlib.Path(sys.executable), [0, 1], quick)
        return {group.name: group for group in groups.all_groups(tools)}

    def test_sizes_of_all_reduce(self):
        built = self.groups(quick=False)
        two = [point.name for point in built["all-reduce-2"].points]
        self.assertEqual((two[:3], two[-1]), (["2 ranks, 8 B", "2 ranks, 1 KiB", "2 ranks, 4 KiB"], "2 ranks, 64 MiB"))
        four = [point.name for point in built["all-reduce-4"].points]
        self.assertEqual((four[:2], four[-1], len(four)), (["4 ranks, 16 B", "4 ranks, 64 B"], "4 ranks, 64 MiB", 12))

    def test_targets_begin_where_they_are_stated(self):
        points = {point.name: point for point in self.groups(quick=False)["all-reduce-2"].points}
        stated = [str(points[f"2 ranks, {size}"].target("MPICH, in place")) for size in ("8 B", "1 KiB", "256 KiB", "1 MiB")]
        self.assertEqual(stated, ["<= 1.1", "< 1", "< 1", "<= 0.33"])
        self.assertEqual(str(points["2 ranks, 1 KiB"].target("Gloo, in place")), "< 1")

    def test_collectives_beside_all_reduce(self):
        built = self.groups(quick=False)
        points = {point.name: point for point in built["reduce-scatter-2"].points}
        stated = [str(points[f"reduce-scatter, 2 ranks, {size}"].target("Open MPI")) for size in ("64 B", "1 KiB", "1 MiB")]
        self.assertEqual(stated, ["<= 1.1", "< 1", "<= 0.5"])
        self.assertEqual(str(built["broadcast-8"].points[-1].target("Open MPI")), "< 1")
        self.assertEqual([name for name in built if name.startswith("all-to-all")],
                         [f"all-to-all-{where}" for where in ("2", "4", "8", "net-2", "net-4")])

    def test_what_goes_over_a_network_needs_hosts(self):
        group = self.groups(quick=False)["broadcast-net-4"]
        jobs = group.jobs
        self.assertEqual([(job.program, job.hosts) for job in jobs], [("qpair", 4)])  # Open MPI's program was not built
        self.assertIn("launch -H 10.66.0.1,10.66.0.2,10.66.0.3,10.66.0.4 --ssh enter --no-prefix", jobs[0].command)
        self.assertEqual(group.of_this_machine_alone().jobs, [])

    def test_absolute_targets_are_qpairs_own(self):
        each, seldom = self.groups(quick=True)["post-poll"].points
        self.assertEqual([str(each.target("qpair")), str(seldom.target("qpair"))], ["<= 50", "<= 30"])
        self.assertIsNone(seldom.target("UCX put_bw posix,self"))


class Processes(unittest.TestCase):
    def test_failures_are_told(self):
        with self.assertRaisesRegex(JobFailed, "exit status 3: why"):
            output_of(["sh", "-c", "echo why >&2; exit 3"])
        with self.assertRaisesRegex(JobFailed, "No such file"):
            output_of(["/no/such/program"])

    def test_names_of_points(self):
        names = [jobs.sized("x", size) for size in (8, 1024, 65536, 1 << 20, 64 << 20, 1500)]
        self.assertEqual(names, ["x 8 B", "x 1 KiB", "x 64 KiB", "x 1 MiB", "x 64 MiB", "x 1500 B"])


@unittest.skipUnless(hosts.can_be_had(), "namespaces can not be made here")
class Hosts(unittest.TestCase):
    def test_commands_run_on_them_and_nothing_is_left(self):
        with hosts.Hosts(2):
            told = output_of([str(hosts.ENTER), "-x", hosts.address(2), "hostname;", "ip -4 -o address show dev", hosts.DEVICE])
            # One that stays is ended with its host.
            output_of([str(hosts.ENTER), hosts.address(1), "sleep 1000 >/dev/null 2>&1 &"])
        self.assertTrue(told.startswith(f"{hosts.PREFIX}2\n") and hosts.address(2) in told, told)
        self.assertNotIn(hosts.PREFIX, hosts.ip("netns", "list"))

    def test_a_failure_of_a_command_is_its_own(self):
        with hosts.Hosts(1), self.assertRaisesRegex(JobFailed, "exit status 7"):
            output_of([str(hosts.ENTER), hosts.address(1), "exit 7"])


class Report(unittest.TestCase):
    def result(self, troubles=("oh",)):
        point = groups.Point("p 8 B", "us", [groups.Target("<", 1, "UCX"), groups.Target("<=", 1.5, "flag"),
                                             groups.Target("<=", 1.5)])
        all_jobs = [jobs.Job(name, f"{name} -s 8", dict) for name in ("qpair", "UCX a", "flag", "memcpy", "gone")]
        samples = {("p 8 B", "qpair"): {0: 3.0, 1: 1.0, 2: 2.0}, ("p 8 B", "UCX a"): {2: 1.0},
                   ("p 8 B", "flag"): {0: 3.0, 1: 0.5, 2: 2.0}, ("p 8 B", "memcpy"): {7: 200.4}}
        group = groups.Group("g", "G", [point], all_jobs)
        return report.Result({"CPU": "some"}, "benches/peers/run --quick", 3, [group], samples, list(troubles))

    def test_rows(self):
        result = self.result()
        self.assertEqual([row.cells for row in report.rows(result, result.groups[0])], [
            ["p 8 B", "qpair", "2", "1..3", "us", "", "<= 1.5", "NO"],
            ["p 8 B", "UCX a", "1", "1..1", "us", "2.00", "< 1", "NO"],
            ["p 8 B", "flag", "2", "0.5..3", "us", "1.00", "<= 1.5", "yes"],
            ["p 8 B", "memcpy", "200", "200..200", "us", "", "", ""],
        ])

    def test_all_forms_carry_everything(self):
        for form in (report.as_text, report.as_markdown, report.as_json):
            text = form(self.result())
            for part in ("some", "UCX a -s 8", "oh", "benches/peers/run --quick"):
                self.assertIn(part, text, form.__name__)

    def test_markdown_names_what_is_missed_and_why(self):
        with mock.patch.dict(report.REASONS, {"p 8 B": "It is far."}):
            text = report.as_markdown(self.result())
        self.assertIn("1 of 3 targets are met. Missed:", text)
        self.assertIn("- **p 8 B**: 2 us, not <= 1.5; 2.00x UCX a, not < 1. It is far.\n", text)
        self.assertIn("| p 8 B | 2 (1..3)<br>**missed: target <= 1.5** | 1 (1..1)<br>**missed: 2.00x (< 1)** | "
                      "2 (0.5..3)<br>1.00x (<= 1.5) | 200 (200..200) |\n", text)

    def test_points_that_are_missed_for_one_reason_stand_together(self):
        points = [groups.Point(f"p {size} B", "us", [groups.Target("<", 1)]) for size in (1, 2, 4, 8)]
        samples = {(point.name, "qpair"): {0: 2.0} for point in points}
        group = groups.Group("g", "G", points, [jobs.Job("qpair", "qpair", dict)])
        result = report.Result({}, "", 1, [group], samples, [])
        with mock.patch.dict(report.REASONS, {"p 1 B": "It is far.", "p 2 B": "It is late.", "p 4 B": "It is far."}):
            lines = report.missed(result, group)
        self.assertEqual(lines, ["**G**: p 1 B (2 us, not < 1), p 4 B (2 us, not < 1). It is far.",
                                 "**p 2 B**: 2 us, not < 1. It is late.",
                                 "**G**, for no reason that is known: p 8 B (2 us, not < 1)."])

    def test_reasons_belong_to_points(self):
        tools = jobs.Tools(pathlib.Path("/none"), None, [0, 1], False)
        points = {point.name for group in groups.all_groups(tools) for point in group.points}
        self.assertLessEqual(set(report.REASONS), points)

    def test_a_job_of_qpair_that_failed_is_a_failure(self):
        result = self.result()
        self.assertFalse(compare.misses_values(result.groups, result.samples, 3))
        self.assertTrue(compare.misses_values(result.groups, result.samples, 4))
        self.assertTrue(compare.misses_values(result.groups, {}, 1))


if __name__ == "__main__":
    unittest.main()
