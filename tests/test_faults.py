"""docs/faults.md and the tests name the same cases: no id without a row, no row without a test or a reason."""

import ast
import re

import pytest

import shape

PAGE = shape.ROOT / "docs" / "faults.md"
TESTS = shape.ROOT / "tests"
CASE = r"[RFHCTSMLUX]\d\d"
NAMED = r"(?:\btest|_to)_([rfhctsmlux]\d\d)(?=_)"
"""An id in the name of a function, such as test_s23_ or test_h04_to_h07_."""
UNBUILT = re.compile(r"not built yet: \w+")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(rf"\| ?{CASE} ?\|", line)
]


def ids_in(text):
    """The ids that a test file names in its functions, docstrings and comments."""
    names = {id_.upper() for id_ in re.findall(NAMED, text)}
    return names | set(re.findall(rf"\b{CASE}\b", text))


def ids_of_tests(text):
    """The ids in the names of test functions, and those with which their docstrings begin."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    tests = [function for function in functions if function.name.startswith("test_")]
    names = {id_.upper() for test in tests for id_ in re.findall(NAMED, test.name)}
    begins = [re.match(rf"({CASE}(?:, {CASE})*)[:, ]", ast.get_docstring(test) or "") for test in tests]
    return names | {id_ for begin in begins if begin for id_ in begin[1].split(", ")}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_has_tests_that_name_it_or_says_what_is_not_built(row):
    """Each file exists and names the id; a row without files names the part that is missing."""
    case, happens, holds, where = row
    assert happens
    assert holds
    files = re.findall(r"tests/[\w/]+\.py", where)
    assert bool(files) != bool(UNBUILT.fullmatch(where)), f"{case}: name a test file, or 'not built yet: PART'"
    for file in files:
        assert (shape.ROOT / file).is_file(), f"{case} points to {file}, which is not there"
        assert case in ids_in((shape.ROOT / file).read_text(encoding="utf-8")), f"{file} does not name {case}"


def test_no_case_has_two_rows():
    """An id means one thing."""
    cases = [row[0] for row in ROWS]
    assert len(cases) > 100
    assert len(cases) == len(set(cases))


def test_every_id_of_a_test_is_a_row():
    """Whoever meets an id in a test can look it up, and a case with tests is not called unbuilt."""
    built = {row[0] for row in ROWS if not UNBUILT.fullmatch(row[3])}
    for file in sorted(TESTS.rglob("test_*.py")):
        unknown = ids_of_tests(file.read_text(encoding="utf-8")) - built
        assert not unknown, f"{file.name} names {', '.join(sorted(unknown))}: docs/faults.md needs them"


def test_an_unknown_id_would_be_found():
    """The checks above are not blind: names, ranges in names and docstrings are all read."""
    text = 'def test_q01_x():\n    """Q99: x."""\n\ndef test_r98_to_s99_x():\n    """T97, T98: both."""\n'
    assert ids_of_tests(text) == {"R98", "S99", "T97", "T98"}
    assert ids_in("def test_r98_to_s99_x(): # T97") == {"R98", "S99", "T97"}
