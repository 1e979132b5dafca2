"""Imports the user's modules in a reproduction, under names that nothing else in the script has."""

import os
import sys

from . import adapters_loading, adapters_names

# The script's functions use these names, beside those that main()'s request names.
_LOCAL = ("x", "y", "g", "xs", "group", "outputs", "chunks", "operand", "output", "sent",
          "received", "shapes", "parts", "nn", "fc", "sys", "importlib", "module_of")

_MODULE_OF = '''

def module_of(name, path):
    """A file whose name is no module's, or another module's."""
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


'''


class Imports:
    """Collects what is imported. `taken` are names that no module may have in the script."""

    def __init__(self, taken):
        kinds = adapters_names.KINDS  # the script has functions and classes with their names
        self._taken = {*taken, *_LOCAL, *kinds,
                       *("".join(word.title() for word in kind.split("_")) for kind in kinds)}
        self._lines = {}  # maps a module's name or a file's path to (line, name in the script)
        self._folders = []

    def function(self, place, name):
        """Returns the script's name for `name` in `place`, a FILE.py or a MODULE."""
        return f"{self._module(place)}.{name}"

    def torch_module(self, module, name):
        self._lines[module] = (f"import {module} as {name}", name)

    def text(self):
        """Returns the lines, each ended. The script itself imports `sys` and `importlib.util`."""
        lines = [line for line, _ in self._lines.values() if line.startswith("import ")]
        files = [line for line, _ in self._lines.values() if not line.startswith("import ")]
        text = "".join(f"\nsys.path.insert(0, {folder!r})"
                       for folder in self._folders) + ("\n" if self._folders else "")
        text += "".join(line + "\n" for line in lines)
        return text + _MODULE_OF + "".join(line + "\n" for line in files) if files else text

    def _module(self, place):
        key = os.path.abspath(os.path.expanduser(place)) if place.endswith(".py") else place
        if key not in self._lines:
            self._lines[key] = (self._of_file(key) if place.endswith(".py")
                                else self._of_module(place))
        return self._lines[key][1]

    def _of_module(self, place):
        module = adapters_loading.load_module(place.partition(".")[0])
        paths = list(getattr(module, "__path__", [])) or [getattr(module, "__file__", None) or ""]
        if os.path.dirname(os.path.abspath(paths[0])) == os.getcwd():  # found there, not installed
            self._add_folder(os.getcwd())
        if place.partition(".")[0] not in self._taken:
            return f"import {place}", place
        name = self._free_name(place.rpartition(".")[2])
        return f"import {place} as {name}", name

    def _of_file(self, path):
        stem = os.path.basename(path)[:-3]
        self._add_folder(os.path.dirname(path))  # for what the file itself imports
        if stem.isidentifier() and not self._is_another(stem, path):
            name = self._free_name(stem)
            return (f"import {stem}" + (f" as {name}" if name != stem else ""), name)
        name = self._free_name("".join(c if c.isalnum() else "_" for c in "file_" + stem))
        return f"{name} = module_of({name!r}, {path!r})", name

    def _add_folder(self, folder):
        if folder not in self._folders:
            self._folders.append(folder)

    def _free_name(self, name):
        taken = self._taken | {used for _, used in self._lines.values()}
        while name in taken:
            name += "_"
        return name

    @staticmethod
    def _is_another(stem, path):
        if stem in getattr(sys, "stdlib_module_names", ()) or stem == "torch":
            return True
        file = getattr(sys.modules.get(stem), "__file__", None)
        return file is not None and os.path.abspath(file) != path
