"""What results.py makes of the output of tests."""

import unittest

import results


class Libtest(unittest.TestCase):
    def outcomes(self, out, err="", status=0, names=("a::one", "a::two")):
        return list(results.libtest(out, err, status, names))

    def test_each_test_gets_its_outcome(self):
        out = "running 2 tests\ntest a::one ... ok\ntest a::two ... FAILED\n"
        err = "\nthread 'a::two' (17) panicked at verbs/tests/a.rs:3:5:\nno such device\nstack backtrace:\n"
        self.assertEqual(self.outcomes(out, err, 101), [("a::one", "passed", ""), ("a::two", "failed", "no such device")])

    def test_what_says_that_it_is_skipped_is_skipped(self):
        out = "test a::one ... ok\ntest a::two ... ok\n"
        err = "skipped: a::two: rxe0 can not do this: or that\n"
        self.assertEqual(self.outcomes(out, err)[1], ("a::two", "skipped", "rxe0 can not do this: or that"))

    def test_what_prints_has_its_outcome_at_the_line_s_end(self):
        self.assertEqual(self.outcomes("test a::one ... size 8 ok\ntest a::two ... ok\n")[0], ("a::one", "passed", ""))

    def test_what_is_ignored_is_skipped_for_its_reason(self):
        out = "test a::one ... ok\ntest a::two ... ignored, needs a case to start it\n"
        self.assertEqual(self.outcomes(out)[1], ("a::two", "skipped", "needs a case to start it"))

    def test_what_did_not_end_failed(self):
        self.assertEqual(self.outcomes("test a::one ... ok\n", status=134)[1], ("a::two", "failed", "it did not end"))

    def test_a_program_that_fails_after_its_tests_failed(self):
        out = "test a::one ... ok\ntest a::two ... ok\n"
        self.assertEqual(self.outcomes(out, status=139)[2], ("(program)", "failed", "it ended with status 139"))

    def test_no_test_at_all_is_a_failure(self):
        self.assertEqual(self.outcomes("", names=()), [("(none)", "failed", "no test of that name")])

    def test_names_come_from_the_list(self):
        self.assertEqual(results.listed("a::one: test\nb: benchmark\n\n1 test, 1 benchmark\n"), ["a::one"])


class Tables(unittest.TestCase):
    ROWS = [
        ["verbs", "a", "passed", ""],
        ["verbs", "b", "skipped", "rxe0 can not do it"],
        ["perftest", "c", "failed", "the client ended with status 1"],
    ]

    def test_steps_are_counted_in_order(self):
        lines = list(results.table(self.ROWS, {"verbs": "7"}))
        self.assertEqual(lines[1].split(), ["verbs", "1", "1", "0", "7"])
        self.assertEqual(lines[2].split(), ["perftest", "0", "0", "1"])

    def test_the_report_gives_reasons(self):
        text = "\n".join(results.report(self.ROWS))
        self.assertIn("skipped b  (rxe0 can not do it)", text)
        self.assertLess(text.index("verbs"), text.index("perftest"))


class Programs(unittest.TestCase):
    def test_a_program_is_known_by_folder_and_target(self):
        message = (
            '{"reason":"compiler-artifact","manifest_path":"/q/verbs/Cargo.toml","target":{"name":"conformance"},'
            '"executable":"/t/conformance-1"}'
        )
        library = '{"reason":"compiler-artifact","manifest_path":"/q/verbs/Cargo.toml","executable":null}'
        self.assertEqual(list(results.programs([message, library])), [("verbs", "conformance", "/t/conformance-1")])


class Measured(unittest.TestCase):
    BANDWIDTH = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n {}\n"

    def wrong(self, row, *options, test="write-bw"):
        return results.measured(test, self.BANDWIDTH.format(row), list(options))

    def test_a_table_that_agrees_with_itself_and_the_options_is_good(self):
        self.assertIsNone(self.wrong("65536      100      62.97      62.50     0.001000", "-s", "65536", "-n", "100"))
        self.assertIsNone(self.wrong("65536 200 0.52 0.52 0.001000", "-s", "65536", "-n", "100", "-q", "2", "--report_gbits"))
        self.assertIsNone(self.wrong("8388608 5 3.05 3.05 0.000000", "-a", "-n", "5"))
        self.assertIsNone(self.wrong("8 100 1.0 2.0 1.5 1.6 0.1 2.0 2.0", "-n", "100", test="atomic-lat"))

    def test_other_sizes_counts_and_units_are_found(self):
        self.assertIn("4096 bytes", self.wrong("4096 100 3.91 3.91 0.001000", "-s", "65536", "-n", "100"))
        self.assertIn("99 iterations", self.wrong("65536 99 62.97 62.50 0.001000", "-s", "65536", "-n", "100"))
        self.assertIn("on average", self.wrong("65536 100 62.97 62.50 0.001000", "-s", "65536", "--report_gbits"))
        self.assertIn("no measurement", results.measured("write-bw", "no table", []))


if __name__ == "__main__":
    unittest.main()
