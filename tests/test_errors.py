"""The exception tree: a branch says who must act, and a message says what to type."""

import re
import shlex
import tomllib

import pytest

import shape
from bpals import errors
from bpals.cli.judge import EXIT
from bpals.cli.main import INTERRUPTED
from bpals.errors import BpalsError, MissingExtra, UnknownName, UsageError, install_line
from world.words import mentions

pytestmark = pytest.mark.quick


def classes():
    """Every exception the package defines."""
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BpalsError)]


def test_the_drawn_tree_is_the_tree():
    """The drawing at the top of the file has every class, each indented under its parent."""
    drawn = {}
    parents = {}
    for indent, name in re.findall(r"^( *)([A-Z]\w+)(?:  |$)", errors.__doc__, flags=re.MULTILINE):
        depth = len(indent) // 2
        drawn[depth] = name
        parents[name] = drawn[depth - 1] if depth else "Exception"
    assert parents == {kind.__name__: kind.__base__.__name__ for kind in classes()}


@pytest.mark.parametrize("kind", classes())
def test_every_error_says_when_in_one_sentence(kind):
    """Each class has one sentence of its own."""
    assert kind.__doc__.count("\n") == 0
    assert kind.__doc__.endswith(".")


def test_a_near_miss_is_answered_with_did_you_mean():
    """A misspelt name gets the nearest known one, whatever the case."""
    error = UnknownName.of("finding", "PNEUMOTORAX", ["Pneumothorax", "Mass"])
    assert mentions(str(error), "finding", "'PNEUMOTORAX'", "'Pneumothorax'?", "Pneumothorax, Mass.")
    assert isinstance(error, UsageError)


def test_a_far_miss_gets_the_list_and_no_guess():
    """Where nothing is near, nothing is guessed."""
    message = str(UnknownName.of("judge", "zzz", iter(["record"])))
    assert "Did you mean" not in message
    assert message.endswith("Known: record.")


def test_an_unknown_name_says_where_it_stood():
    """File and row come first where they are known."""
    assert str(UnknownName.of("finding", "x", ["Mass"], where="my.csv, row 7")).startswith("my.csv, row 7: no finding")


def test_a_missing_extra_gives_the_line_to_type():
    """The line can be pasted into a shell as it stands."""
    assert str(MissingExtra.of("the cleanlab baseline", "peers")).endswith(f"Type: {install_line('peers')}")


def test_the_line_to_type_is_that_of_the_docs(monkeypatch, tmp_path):
    """In bpals' own folder it is that of docs/install.md; elsewhere it names the folder, and a shell reads it back."""
    monkeypatch.chdir(shape.ROOT)
    line = install_line("probe,lite0")
    assert line == "pip install -c constraints.txt -e '.[probe,lite0]'"
    assert f"$ {line} " in (shape.ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert install_line() == "pip install -c constraints.txt -e ."
    monkeypatch.chdir(tmp_path)
    *_, constraints, editable, ours = shlex.split(install_line("xrv"))
    assert (constraints, editable, ours) == (f"{shape.ROOT}/constraints.txt", "-e", f"{shape.ROOT}[xrv]")
    assert shlex.split(install_line(package="timm"))[-2:] == [f"{shape.ROOT}/constraints.txt", "timm"]


def test_nothing_tells_one_to_install_what_no_registry_has():
    """Neither a message nor a page installs bpals by its name, which may be a stranger's, nor any torch."""
    pages = [shape.ROOT / "README.md", *(shape.ROOT / "docs").glob("*.md"), *shape.SRC.rglob("*.py")]
    wrong = re.compile(r"pip install (-\S+ )*['\"]?(bpals|torch)\b")
    assert wrong.search("pip install --upgrade 'bpals[xrv]'")
    assert not [str(page) for page in pages if wrong.search(page.read_text(encoding="utf-8"))]


def test_every_exit_code_is_in_the_docs():
    """What a script may meet can be looked up: done, our bug, yours to act, stopped, interrupted."""
    page = (shape.ROOT / "docs" / "errors.md").read_text(encoding="utf-8").partition("## Exit codes")[2]
    listed = {int(code) for code in re.findall(r"^\| ?(\d+) ?\|", page, re.MULTILINE)}
    assert listed == {0, 1, 2, INTERRUPTED, *EXIT.values()}


def test_no_extra_brings_cuda_by_accident():
    """Every extra that names torch or torchvision stops at the version that constraints.txt has."""
    project = tomllib.loads((shape.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = (shape.ROOT / "constraints.txt").read_text(encoding="utf-8")
    named = [line for lines in project["optional-dependencies"].values() for line in lines if line.startswith("torch")]
    bounded = [re.fullmatch(r"(torch|torchvision)>=[\d.]+,<=([\d.]+)", line) for line in named]
    assert len(named) > 3
    for line, found in zip(named, bounded, strict=True):
        assert found or line.startswith("torchxrayvision"), line
        assert not found or f"\n{found[1]}=={found[2]}\n" in pinned
