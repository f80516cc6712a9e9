"""A name becomes a judge when it is asked for, and not before."""

import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

import shape
from bpals.cli.main import obey
from bpals.errors import MissingExtra, UnknownName, UsageError, install_line
from bpals.registry import EXPORTS, JUDGES, SIGNALS, SOURCES, Spec, find, known, option, options_of, parse_spec


def add_package(folder, name, **judges):
    """Write what an installed package leaves behind: its metadata with entry points, and a module."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{judge} = {where}\n" for judge, where in judges.items())
    (metadata / "entry_points.txt").write_text(f"[{JUDGES.group}]\n{lines}")
    (folder / f"{name}.py").write_text("def make(target, revision):\n    return ('made', target, revision)\n")


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder on the path, where packages can be put."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("openai:org/model@abc123", Spec(kind="openai", target="org/model", revision="abc123")),
        ("openai:org/model", Spec(kind="openai", target="org/model")),
        ("openai:", Spec(kind="openai")),
        ("hf:org/model@refs/pr/1", Spec(kind="hf", target="org/model", revision="refs/pr/1")),
        ("table:scores.parquet@chexnet", Spec(kind="table", target="scores.parquet", revision="chexnet")),
        ("table:me@home/scores.csv", Spec(kind="table", target="me@home/scores.csv")),
        ("table:me@home/scores.csv@a", Spec(kind="table", target="me@home/scores.csv", revision="a")),
        ("python:my/judge.py:bright", Spec(kind="python", target="my/judge.py:bright")),
        ("stub:", Spec(kind="stub")),
        ("stub", Spec(kind="stub")),
        (" stub:7 ", Spec(kind="stub", target="7")),
    ],
)
def test_a_spec_is_taken_apart(text, spec):
    """The revision stands after the last @; in a path an @ before a / belongs to a folder."""
    assert parse_spec(text) == spec


def test_no_kind_is_forgotten(capsys, monkeypatch):
    """A new kind stands in the help, in the list and in both pages."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = []
    for words in (["judge", "run", "--help"], ["judge", "list"]):
        assert obey(words) == 0
        shown.append(" ".join(capsys.readouterr().out.replace("│", " ").split()))
    pages = [(shape.ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("cli.md", "judges.md")]
    for kind in JUDGES.every():
        assert kind.form in shown[1]
        assert f"| `{kind.form}` |" in pages[1]
        if kind.runs != "audit":
            assert kind.short in shown[0]
            assert kind.short in pages[0]


@pytest.mark.parametrize("text", ["openai:org/model@abc", "table:a.csv@b", "stub:7"])
def test_a_spec_is_written_as_it_is_typed(text):
    """What is printed can be typed again."""
    assert str(parse_spec(text)) == text


def test_an_unknown_kind_is_answered_with_what_was_meant():
    """The name, the nearest known one, and all of them."""
    with pytest.raises(UnknownName, match=r"'opanai'.*'openai'\?.*stub"):
        parse_spec("opanai:model")
    with pytest.raises(UnknownName, match="'opanai'"):
        find("opanai")


@pytest.mark.parametrize(
    ("name", "kind"), [("scores.csv", "table"), ("scores.PARQUET", "table"), ("mine.py", "python")]
)
def test_a_file_without_a_kind_is_answered_with_the_line_to_type(tmp_path, name, kind):
    """Somebody who types the path alone is told the one word that is missing."""
    file = tmp_path / name
    file.touch()
    with pytest.raises(UsageError, match=f"Type: bpals judge run {kind}:{file}"):
        parse_spec(str(file))


@pytest.mark.parametrize("text", ["table:", "python:", "table"])
def test_a_kind_that_needs_a_target_says_so(text):
    """And how it is typed."""
    with pytest.raises(UsageError, match=r"(table:FILE|python:FILE)"):
        parse_spec(text)


def test_nothing_after_the_at_is_an_error():
    """A revision that was cut off is not taken for none."""
    with pytest.raises(UsageError, match=r"after the @.* openai:m"):
        parse_spec("openai:m@")


@pytest.mark.parametrize("kind", ["table", "python", "stub"])
def test_the_kinds_of_the_core_can_be_loaded(kind):
    """Each where it is said to be, and with words about what it is."""
    assert callable(find(kind))
    assert JUDGES.load(kind).summary


@pytest.mark.parametrize("registry", [JUDGES, SOURCES, SIGNALS, EXPORTS], ids=lambda registry: registry.group)
def test_every_entry_point_of_ours_can_be_loaded_under_its_name(registry):
    """Whether or not its extra is installed; and each says what it is."""
    ours = [name for name in registry.names() if registry.packages(name) == ["bpals"]]
    kinds = {name: registry.load(name) for name in ours}
    assert {name: kind.name for name, kind in kinds.items()} == {name: name for name in ours}
    assert all(kind.summary for kind in kinds.values())


@pytest.mark.parametrize("kind", JUDGES.every(), ids=lambda kind: kind.name)
def test_an_option_means_one_thing(kind):
    """Two kinds that declare one option describe it alike, and none takes the name of a shared one."""
    shared = options_of(*JUDGES.load("python").takes)
    for other in JUDGES.every():
        for name, (_, said) in options_of(kind.options).items():
            assert name not in shared
            assert options_of(other.options).get(name, (None, said))[1] == said


def test_an_option_without_a_declaration_is_for_python_alone():
    """The command line shows the others."""

    @dataclass(frozen=True)
    class Given:
        shown: int = option(3, "How many.", least=1)
        hidden: str = ""

    assert [(name, said.help) for name, (_, said) in options_of(Given).items()] == [("shown", "How many.")]


def test_listing_the_judges_loads_nothing_heavy():
    """In a fresh process: their declarations, and none of the packages that they need to run."""
    waits = {"torch", "aiohttp", "onnxruntime", "transformers", "sqlalchemy"}
    script = f"import sys, bpals.registry as r; r.known(); print(sorted({waits} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_extra_is_named_with_the_line_to_type(monkeypatch):
    """Where aiohttp cannot be found, openai: says what to install, and the list says it too."""
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtra, match="openai: ") as refused:
        find("openai")
    assert str(refused.value).endswith(f"Type: {install_line('vlm')}")
    assert {row.kind: row.missing for row in known()}[JUDGES.load("openai").form] == install_line("vlm")


def test_a_package_brings_a_judge_of_its_own(packages):
    """Its entry point is found by name, listed with its package, and loaded when it is asked for."""
    add_package(packages, "mypackage", mine="mypackage:make")
    assert parse_spec("stub:7") == Spec(kind="stub", target="7")
    assert "mypackage" not in sys.modules
    assert parse_spec("mine:weights@3") == Spec(kind="mine", target="weights", revision="3")
    assert [row.what for row in known() if row.kind == "mine:"] == ["from the package mypackage"]
    assert find("mine")("weights", "3") == ("made", "weights", "3")
    assert isinstance(sys.modules.pop("mypackage"), ModuleType)


def test_two_packages_with_one_name_are_an_error_that_names_both(packages):
    """Nobody's judge is chosen in silence; the others can still be used."""
    add_package(packages, "onepackage", mine="onepackage:make")
    add_package(packages, "otherpackage", mine="otherpackage:make", free="otherpackage:make")
    with pytest.raises(UsageError, match=r"onepackage .*otherpackage .*'mine'"):
        find("mine")
    assert "onepackage and otherpackage" in next(row.missing for row in known() if row.kind == "mine:")
    assert find("free")("", "") == ("made", "", "")
    del sys.modules["otherpackage"]


def test_a_package_cannot_take_a_name_of_ours(packages):
    """A collision with a built-in is the same error."""
    add_package(packages, "pushy", stub="pushy:make")
    with pytest.raises(UsageError, match=r"bpals .*pushy .*'stub'"):
        find("stub")
    assert "pip uninstall pushy" in next(row.missing for row in known() if row.kind.startswith("stub:"))


@pytest.mark.parametrize("where", ["gone.module:make", "half:nothing"])
def test_an_entry_point_that_leads_nowhere_is_one_line(packages, where):
    """The package is named, not a traceback of ours."""
    add_package(packages, "half", broken=where)
    with pytest.raises(UsageError, match=f"half .*{where}"):
        find("broken")
    sys.modules.pop("half", None)


def test_the_list_has_every_kind_in_words():
    """How it is typed, what it is, and what it lacks."""
    rows = known()
    assert [row.kind for row in rows] == [kind.form for kind in JUDGES.every()]
    assert all(row.what for row in rows)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("mean_brightness.py", "python:mean_brightness.py"),
        ("nowhere/mine.py:bright", "python:nowhere/mine.py:bright"),
        ("scores.csv", "table:scores.csv"),
        ("scores.csv.gz", "table:scores.csv.gz"),
    ],
)
def test_a_file_typed_alone_is_answered_with_its_kind(text, meant):
    """Whether it is there or not."""
    with pytest.raises(UsageError, match=f"Type: bpals judge run {meant}$"):
        parse_spec(text)
