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

    def test_what_is_ignored_is_left_out(self):
        out = "test a::one ... ok\ntest a::two ... ignored, needs a case to start it\n"
        self.assertEqual(self.outcomes(out), [("a::one", "passed", "")])

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


if __name__ == "__main__":
    unittest.main()
