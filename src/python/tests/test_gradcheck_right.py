"""gradcheck of functions whose backward is right, or disputed, as they leave something out of
autograd, or that are right by a convention: what it finds, and how it is reported.

    python src/python/tests/test_gradcheck_right.py [Cases.test_NAME]
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gradchecks import constants, conventions, right, running  # noqa: E402


class Cases(unittest.TestCase):
    def test_right(self):
        self.look_at(running.by_default(right.CASES, right.SELDOM))

    def test_seldom(self):
        self.assertEqual(right.SELDOM - {case.name for case in right.CASES}, set())

    def test_constants(self):
        self.look_at(constants.CASES)

    def test_conventions(self):
        self.look_at(conventions.CASES)

    def look_at(self, cases):
        """Of many in one set of ranks: starting them takes long, too."""
        for case, size, report in running.reports(cases):
            with self.subTest(case.name, ranks=size):
                self.assertEqual(running.objections(case, report), [],
                                 f"{case.name} on {size} ranks:\n{report}")


if __name__ == "__main__":
    unittest.main()
