"""Tests of the parts that need no peer: python3 -m unittest discover -s benches/peers"""

import unittest

import groups
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

    def test_mpibench(self):
        text = "a warning, perhaps\noperation,ranks,bytes,us_median,us_min,us_max\nallreduce,2,1024,0.98,0.97,1.2\n"
        self.assertEqual(outputs.mpibench(text), {1024: 0.98})
        with self.assertRaises(JobFailed):
            outputs.mpibench("")

    def test_qpair_shapes(self):
        row = '{"size": 1024, "time_us": 3}'
        for text in (row, f"[{row}]", f"[\n{row}\n]", f'{{"rows": [{row}]}}'):
            self.assertEqual(outputs.qpair_collective(text), {1024: 3.0}, text)
        self.assertEqual(outputs.qpair_collective(row + "\n" + row.replace("1024", "8")), {1024: 3.0, 8: 3.0})
        for text in ("", "error", "3", '{"size": 1024}'):
            with self.assertRaises(JobFailed, msg=text):
                outputs.qpair_latency(text)


class Processes(unittest.TestCase):
    def test_failures_are_told(self):
        with self.assertRaisesRegex(JobFailed, "exit status 3: why"):
            output_of(["sh", "-c", "echo why >&2; exit 3"])
        with self.assertRaisesRegex(JobFailed, "No such file"):
            output_of(["/no/such/program"])

    def test_names_of_points(self):
        names = [jobs.sized("x", size) for size in (8, 1024, 65536, 1 << 20, 64 << 20, 1500)]
        self.assertEqual(names, ["x 8 B", "x 1 KiB", "x 64 KiB", "x 1 MiB", "x 64 MiB", "x 1500 B"])


class Report(unittest.TestCase):
    def result(self):
        point = groups.Point("p 8 B", "us", [groups.Target("UCX", "<", 1), groups.Target("flag", "<=", 1.5)])
        all_jobs = [jobs.Job(name, f"{name} -s 8", dict) for name in ("qpair", "UCX a", "flag", "memcpy", "gone")]
        samples = {("p 8 B", "qpair"): {0: 3.0, 1: 1.0, 2: 2.0}, ("p 8 B", "UCX a"): {2: 1.0},
                   ("p 8 B", "flag"): {0: 3.0, 1: 0.5, 2: 2.0}, ("p 8 B", "memcpy"): {7: 200.4}}
        return report.Result({"CPU": "some"}, "benches/peers/run --quick", 3, [groups.Group("g", "G", [point], all_jobs)], samples, ["oh"])

    def test_rows(self):
        result = self.result()
        self.assertEqual(report.rows(result, result.groups[0]), [
            ["p 8 B", "qpair", "2", "1..3", "us", "", "", ""],
            ["p 8 B", "UCX a", "1", "1..1", "us", "2.00", "< 1", "NO"],
            ["p 8 B", "flag", "2", "0.5..3", "us", "1.00", "<= 1.5", "yes"],
            ["p 8 B", "memcpy", "200", "200..200", "us", "", "", ""],
        ])

    def test_all_forms_carry_everything(self):
        for form in (report.as_text, report.as_markdown, report.as_json):
            text = form(self.result())
            for part in ("some", "UCX a -s 8", "oh", "benches/peers/run --quick"):
                self.assertIn(part, text, form.__name__)


if __name__ == "__main__":
    unittest.main()
