"""Makes distgrad/ranks/allow_list.py out of src/rank/expression/allow_list.cpp: python3
allow_list_table.py > FILE."""

import pathlib
import re
import textwrap

_SOURCE = pathlib.Path(__file__).resolve().parents[2] / "rank/expression/allow_list.cpp"
_COLUMNS = 100
_PLACES = {"F": ("TORCH",), "M": ("METHODS",), "FM": ("TORCH", "METHODS"), "L": ("LINALG",)}

_HEAD = '''\
"""What an expression may call: the tables of src/rank/expression/allow_list.cpp, from which a
test's script makes this file.

python3 src/python/tests/allow_list_table.py > src/python/distgrad/ranks/allow_list.py
"""
'''


def _body(text, array):
    """Between the braces of `constexpr TYPE array[] = {...};`, without comments, adjacent strings
    joined."""
    found = re.search(re.escape(array) + r"\[\] = \{(.*?)\n?\};", text, re.S)
    body = re.sub(r"//[^\n]*", "", found.group(1))
    return re.sub(r'"\s*"(?=[^",}])', "", body) if array == "kFunctional" else body


def tables(text):
    result = {"TORCH": set(), "METHODS": set(), "LINALG": set()}
    groups = re.findall(r'\{"[^"]+", (k\w+)\}', _body(text, "kGroups"))
    for group in groups:
        entries = re.findall(r'\{"(\w+)",\s*(\w+)\}', _body(text, group))
        assert len(entries) == _body(text, group).count("{"), group
        for name, places in entries:
            for place in _PLACES[places]:
                result[place].add(name)
    functional = re.findall(r'\{"(\w+)",\s*"((?:[^"]|"\s*")*?)",\s*"\w+",\s*"\d*"\}',
                            _body(text, "kFunctional"))
    assert len(functional) == _body(text, "kFunctional").count("{")
    result["FUNCTIONAL"] = {name: re.sub(r'"\s*"', "", arguments) for name, arguments in functional}
    for table, array in (("ATTRIBUTES", "kAttributes"), ("DTYPES", "kTorchDTypes"),
                         ("CONSTANTS", "kConstants")):
        result[table] = set(re.findall(r'\{"(\w+)"', _body(text, array)))
    result["PYTHON"] = set(re.findall(r'"(\w+)"', _body(text, "kPythonFunctions")))
    return result


def _row(name, arguments):
    """An entry of FUNCTIONAL; in adjacent strings where one line cannot hold its arguments."""
    assert not re.search(r'["\\]', arguments), name
    row = f'    "{name}": "{arguments}",\n'
    if len(row) <= _COLUMNS + 1:
        return row
    # Only between arguments: the blanks inside of one are hidden from the wrapping.
    whole = re.sub(r"(?<!,) ", "\0", arguments)
    pieces = textwrap.wrap(whole, _COLUMNS - len('        ""'), drop_whitespace=False)
    lines = [f'        "{piece}"\n' for piece in pieces]
    return f'    "{name}": (\n' + "".join(lines).replace("\0", " ") + "    ),\n"


def module(tables_):
    parts = [_HEAD]
    for table, names in tables_.items():
        if table == "FUNCTIONAL":
            continue
        words = textwrap.fill(" ".join(sorted(names)), _COLUMNS, initial_indent="    ",
                              subsequent_indent="    ")
        parts.append(f'{table} = frozenset(\n    """\n{words}\n    """.split()\n)\n')
    rows = "".join(_row(name, arguments) for name, arguments in tables_["FUNCTIONAL"].items())
    parts.append(
        "# The arguments on offer, in torch's schema language; empty: as torch.NAME has them.\n"
        "FUNCTIONAL = {\n" + rows + "}\n")
    return "\n".join(parts)


def generated():
    return module(tables(_SOURCE.read_text()))


if __name__ == "__main__":
    print(generated(), end="")
