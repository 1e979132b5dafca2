"""Tests gradcheck on functions whose backward is wrong: what it finds and how it is reported.

    python src/python/tests/test_gradcheck_wrong.py [Cases.test_NAME]
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gradchecks import wrong, running  # noqa: E402


class Cases(unittest.TestCase):
    def test_sums(self):
        self.look_at(wrong.SUMS + wrong.GATHERS)

    def test_others_1(self):
        self.look_at(wrong.OTHERS[0::3])

    def test_others_2(self):
        self.look_at(wrong.OTHERS[1::3])

    def test_others_3(self):
        self.look_at(wrong.OTHERS[2::3])

    def test_behaviours_1(self):
        self.look_at((wrong.BEHAVIOURS + wrong.MORE)[0::2])

    def test_behaviours_2(self):
        self.look_at((wrong.BEHAVIOURS + wrong.MORE)[1::2])

    def test_seldom(self):
        self.assertEqual(wrong.SELDOM - {case.name for case in wrong.CASES}, set())

    def look_at(self, cases):
        """Looks at many cases in one set of ranks, as starting ranks takes long."""
        for case, size, report in running.reports(running.by_default(cases, wrong.SELDOM)):
            with self.subTest(case.name, ranks=size):
                self.assertEqual(running.objections(case, report), [],
                                 f"{case.name} on {size} ranks:\n{report}")


if __name__ == "__main__":
    unittest.main()
