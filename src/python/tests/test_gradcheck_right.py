"""Tests gradcheck on functions whose backward is right, is disputed because they leave something
out of autograd, or is right by a convention: what it finds and how it is reported.

    python src/python/tests/test_gradcheck_right.py [Cases.test_NAME]
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gradchecks import constants, conventions, right, running  # noqa: E402


class Cases(unittest.TestCase):
    def test_right_1(self):
        self.look_at_right(0)

    def test_right_2(self):
        self.look_at_right(1)

    def test_right_3(self):
        self.look_at_right(2)

    def test_right_4(self):
        self.look_at_right(3)

    def look_at_right(self, part):
        """Looks at a quarter of the right cases, so that no test takes minutes."""
        self.look_at(running.by_default(right.CASES, right.SELDOM)[part::4])

    def test_seldom(self):
        self.assertEqual(right.SELDOM - {case.name for case in right.CASES}, set())

    def test_constants(self):
        self.look_at(constants.CASES)

    def test_conventions(self):
        self.look_at(conventions.CASES)

    def look_at(self, cases):
        """Looks at many cases in one set of ranks, as starting ranks takes long."""
        for case, size, report in running.reports(cases):
            with self.subTest(case.name, ranks=size):
                self.assertEqual(running.objections(case, report), [],
                                 f"{case.name} on {size} ranks:\n{report}")


if __name__ == "__main__":
    unittest.main()
