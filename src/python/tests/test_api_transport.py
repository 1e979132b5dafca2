"""Functions that go to another process, and what cannot."""

import importlib.util
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import torch

PACKAGE = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, PACKAGE)

from distgrad import transport  # noqa: E402

# Calls what it is given and prints the result.
THERE = "import sys; sys.path.insert(0, sys.argv[1]); from distgrad import transport; " \
        "print(transport.loads(open(sys.argv[2], 'rb').read())())"

ODD_FILE = """
    class Base:
        def number(self):
            return FACTOR * 5

    FACTOR = 2

    def plain():
        return Base().number()

    def make(offset):
        def local(again=3):
            if again:
                return local(again - 1)  # closes over itself
            return plain() + offset
        return local
"""


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x


def at_the_top():
    return "top"


class Transport(unittest.TestCase):
    def there(self, function):
        """What the function returns in another process, as text."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(transport.dumps(function))
            file.flush()
            done = subprocess.run([sys.executable, "-c", THERE, PACKAGE, file.name],
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_functions_of_a_script(self):
        number = [4]
        self.assertEqual(self.there(at_the_top), "top")
        self.assertEqual(self.there(lambda: at_the_top() + str(number)), "top[4]")

    def test_functions_of_a_file_that_is_no_importable_module(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "odd.py")
            file.write_text(textwrap.dedent(ODD_FILE))
            spec = importlib.util.spec_from_file_location("tests.odd", file)
            module = sys.modules["tests.odd"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.assertEqual(self.there(module.plain), "10")
            self.assertEqual(self.there(module.make(7)), "17")
            self.assertEqual(transport.place_of(module.plain), ("tests.odd", "plain"))
            self.assertEqual(transport.place_of(module.Base.number), ("tests.odd", "Base.number"))
            self.assertIsNone(transport.place_of(module.make(7)))

    def test_a_class_in_a_function_is_refused(self):
        class Local:
            pass

        with self.assertRaisesRegex(transport.TransportError,
                                    "Local.*move it to the top of its module"):
            transport.dumps(lambda: Local())

    def test_what_cannot_be_pickled_is_named(self):
        lock = __import__("threading").Lock()
        with self.assertRaisesRegex(transport.TransportError, "cannot be sent to the ranks.*lock"):
            transport.dumps(lambda: lock)

    def test_an_apply_has_the_name_of_its_class(self):
        self.assertEqual(transport.place_of(Function.apply), ("__main__", "Function.apply"))


if __name__ == "__main__":
    unittest.main()
