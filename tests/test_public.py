"""The public surface: what `import bpals` shows, and that each name is explained."""

import re
import tomllib
from types import ModuleType

import bpals
import shape
from bpals.version import VERSION

PUBLIC = [
    "Draw", "Endpoint", "Order", "Run", "Worth", "__version__", "audit", "compare", "export_reviews", "export_signal",
    "find_label_issues", "get_label_quality_scores", "import_reviews", "judge", "load_reviews", "load_signal",
    "mask", "next_reviews", "plan_rate", "rate", "run_judge", "run_probe", "scorecard", "targets", "weights",
    "with_targets",
]  # fmt: skip


def headings(page):
    """The headings of a page of docs, without marks."""
    lines = (shape.ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    return [re.sub(r"[`#*]", "", line).strip() for line in lines if line.startswith("#")]


def test_all_is_what_it_was_yesterday():
    """A name that comes or goes is seen in this list first."""
    assert sorted(bpals.__all__) == sorted(PUBLIC)


def test_all_equals_what_is_visible():
    """Nothing public is left out of `__all__`, and nothing else is visible but the rooms themselves."""
    visible = {name for name in dir(bpals) if not name.startswith("_")}
    modules = {name for name in visible if isinstance(getattr(bpals, name), ModuleType)}
    ours = {"TYPE_CHECKING", "Any"}
    assert visible - modules - ours == set(bpals.__all__) - {"__version__"}
    assert all(getattr(bpals, name).__name__ == f"bpals.{name}" for name in modules)


def test_audit_is_the_function():
    """`bpals.audit` is the function, though a module of the same name holds it."""
    assert callable(bpals.audit)


def test_every_public_name_is_explained():
    """Each has a heading in docs/api.md or docs/glossary.md, and a docstring."""
    explained = {re.split(r"[ (]", heading)[0].removeprefix("bpals.") for page in ("api.md", "glossary.md")
                 for heading in headings(page)}  # fmt: skip
    for name in set(bpals.__all__) - {"__version__"}:
        assert name in explained, f"{name} has no heading in docs/api.md or docs/glossary.md"
        assert getattr(bpals, name).__doc__, f"{name} has no docstring"


def test_the_version_is_the_same_everywhere():
    """The package, CITATION.cff and CHANGELOG.md name one version."""
    assert bpals.__version__ == VERSION
    assert f"\nversion: {VERSION}\n" in (shape.ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {VERSION}" in (shape.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_types_are_shipped():
    """A user's type checker may believe ours."""
    assert (shape.SRC / "bpals" / "py.typed").exists()
    project = tomllib.loads((shape.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["bpals"]


def test_everything_that_is_no_python_is_shipped():
    """Each data file in the tree is matched by a pattern of package-data; a wheel without it would fail far away."""
    project = tomllib.loads((shape.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["bpals"]
    package = shape.SRC / "bpals"
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert files
    assert not files - {path for pattern in patterns for path in package.glob(pattern)}
