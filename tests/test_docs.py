"""The documents are executed: code runs, commands parse, links resolve, generated parts are fresh."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest
from typer.main import get_command

import shape
import write_docs
import write_scorecard
from bpals.cli.main import app
from bpals.findings import NIH
from bpals.types import signal_schema
from world import datasets
from world.datasets import EXAMPLES

README = shape.ROOT / "README.md"
DOCS = sorted((shape.ROOT / "docs").glob("*.md"))
PAGES = [page for page in [README, *DOCS] if page.exists()]
PROSE = [*PAGES, shape.ROOT / "CONTRIBUTING.md", *sorted((shape.ROOT / "design").glob("*.md"))]
MAKEFILE = (shape.ROOT / "Makefile").read_text(encoding="utf-8")
QUOTES = {
    "rate.md": (
        "The last lines show",
        "In the example .211",
        "In the example it is .010",
    )
}
"""How those paragraphs of a page begin that quote what its python blocks print."""
GENERATED = re.compile(r"^<!-- (?:made|printed|python|scorecard)\b.*?^<!-- (?:end of|/)", re.MULTILINE | re.DOTALL)
"""What a command writes into a page; its lines are as long as the command makes them."""
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    """The text of each fenced block of a language."""
    return [body for found, body in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


def pages_with(language):
    """Pages that have a block of a language, as parameters named after the page."""
    return [pytest.param(page, id=page.name) for page in PROSE if blocks(page, language)]


def commands_of(page):
    """Every line that a console block tells you to type."""
    text = "".join(blocks(page, "console")).replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def place(audit_once, tmp_path_factory):
    """A folder as a reader has it: the made-up films, and a finished audit of them."""
    folder = tmp_path_factory.mktemp("place")
    lay_out(folder, EXAMPLES / "films.csv")
    source = ("--source", f"table:{folder / 'films.csv'}", "--mapping", folder / "films.toml")
    shutil.copytree(audit_once("examples", *source), folder / "audit")
    return folder


@pytest.fixture(scope="module")
def quick_place(films_audit, tmp_path_factory):
    """The same with patients of two folds, where no page quotes a figure."""
    folder = tmp_path_factory.mktemp("quick")
    lay_out(folder, datasets.FILMS)
    shutil.copytree(films_audit, folder / "audit")
    return folder


def lay_out(folder, films):
    """Copy the films, and what belongs to them."""
    for file in (films, EXAMPLES / "films.toml", EXAMPLES / "experts.csv"):
        shutil.copy(file, folder)


def run_python(script, folder):
    """Run a script in a folder, with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(shape.SRC)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("page", pages_with("python"))
def test_every_python_block_runs(page, request, tmp_path):
    """The blocks of a page run from top to bottom as one program, in a folder that has an audit."""
    place = request.getfixturevalue("place" if page.name in QUOTES else "quick_place")
    folder = shutil.copytree(place, tmp_path / "place")
    # queue.py would stand before the standard library's queue.
    script = folder / f"page-{page.stem}.py"
    script.write_text(only_python(page), encoding="utf-8")
    done = run_python(script, folder)
    assert done.returncode == 0, f"{page.name}: line numbers are those of the page\n{done.stderr}"
    missing = [number for number in quoted(page) if number not in done.stdout]
    assert not missing, f"{page.name} quotes {', '.join(missing)}, and its own program prints no such figure"


def quoted(page):
    """The figures of three digits in those paragraphs of a page that say what its own program prints."""
    begins = QUOTES.get(page.name, ())
    quotes = [part for part in page.read_text(encoding="utf-8").split("\n\n") if part.startswith(begins)]
    assert len(quotes) == len(begins)
    return [f"0{number}" for part in quotes for number in re.findall(r"(?<![\d.])\.\d{3}\b", part)]


def only_python(page):
    """The page with everything but its python blocks blanked, so that a traceback has the page's line numbers."""
    inside, lines = "", []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = "" if inside else (line.removeprefix("```").strip() or "text")
            lines.append("")
        else:
            lines.append(line if inside == "python" else "")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", pages_with("console"))
def test_every_console_line_can_be_typed(page):
    """`bpals ...` parses, `make ...` is a target, a script that is run exists."""
    lines = commands_of(page)
    assert lines, f"{page.name} has a console block without a line that starts with '$ '"
    for line in lines:
        check_line(shlex.split(line, comments=True))


def check_line(words):
    """Fail if a line would not be understood."""
    match words:
        case ["bpals", *arguments]:
            parse(arguments)
        case ["make", *targets]:
            for target in targets:
                assert "=" in target or re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"make has no {target}"
        case ["python" | ".venv/bin/python", script, *_] if not script.startswith("-"):
            assert (shape.ROOT / script).exists(), script
        case ["try/bin/bpals", *arguments]:  # a wheel in an empty environment
            parse(arguments)
        case ["pip" | "try/bin/pip" | "git" | "cd" | "sudo" | "python" | "open" | ".ci/run", *_]:
            pass
        case _:
            pytest.fail(f"nobody checks lines such as {shlex.join(words)}")


def parse(arguments):
    """Let the command line read the arguments without doing anything; it raises at an unknown word."""
    group = get_command(app)
    with group.make_context("bpals", list(arguments), resilient_parsing=False) as context:
        rest = [*context._protected_args, *context.args]
        if rest:
            name, command, left = group.resolve_command(context, rest)
            command.make_context(name, left, parent=context).close()


def test_a_wrong_line_would_be_found():
    """The check above is not blind to an unknown option, command or target."""
    for line in ("bpals audit --no-such", "bpals no-such", "make no-such", "python scripts/no-such.py", "no-such"):
        with pytest.raises((Exception, pytest.fail.Exception)):
            check_line(line.split())


@pytest.mark.parametrize("page", pages_with("toml") + pages_with("json"))
def test_every_toml_and_json_block_can_be_read(page):
    """A mapping in the docs can be pasted into a file, an output read by a program."""
    for block in blocks(page, "toml"):
        assert tomllib.loads(block)
    for block in blocks(page, "json"):
        assert json.loads(block)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PROSE])
def test_every_link_inside_the_repository_resolves(page):
    """The file is there, and so is the heading."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        link = target[0] or target[1]
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {link}"


def anchors(page):
    """The anchors that a page's headings make, and those it keeps for old links."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    named = re.findall(r"<a id=\"([\w-]+)\"></a>", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings} | set(named)


def test_the_generated_parts_are_fresh():
    """What the docs say of schemas, commands, errors, notices and extras is what the code says: else `make docs`."""
    assert [page.name for page in write_docs.stale()] == []


def test_every_command_and_option_is_in_the_docs():
    """Each command has a heading in cli.md, each option stands there in its own marks."""
    text = (shape.ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, command in write_docs.leaves(get_command(app)):
        assert f"\n## bpals {name}\n" in text
        for flag in (flag for option in command.params for flag in option.opts if flag.startswith("-")):
            assert f"`{flag}`" in text, f"bpals {name} {flag}"


def test_every_notice_has_a_code_in_the_docs():
    """A code that a program may meet in run.json can be looked up."""
    text = (shape.ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    codes = {code for _, code in write_docs.notice_codes()}
    assert len(codes) > 5
    assert not [code for code in codes if f"`{code}`" not in text]


def test_every_column_of_the_signal_is_explained():
    """tables.md says in words what each column of the product means."""
    meanings = (shape.ROOT / "docs" / "tables.md").read_text(encoding="utf-8").split("mean\n")[1]
    for column in signal_schema(NIH.findings):
        assert f"`{column}`" in meanings, column


def test_every_page_is_on_the_map():
    """docs/index.md links every page, so that none is lost."""
    index = (shape.ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert not [page.name for page in DOCS if page.name != "index.md" and f"({page.name})" not in index]


def test_the_site_has_the_pages_in_the_groups_of_the_start_page():
    """The nav of mkdocs.yml is docs/index.md, group by group and name by name."""
    index = (shape.ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    on_page = re.findall(r"^(?:## (.+)|- \[(.+?)\]\((.+?)\).*)$", index, re.MULTILINE)
    nav = (shape.ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:\n  - index.md\n")[2]
    on_site = re.findall(r"^(?:  - (.+):|      - (.+?): (.+))$", nav, re.MULTILINE)
    assert on_site == on_page
    assert len(on_site) > 30


def test_the_site_builds(tmp_path):
    """`make site` is strict: a broken link or anchor, or a page outside the nav, fails it."""
    pytest.importorskip("mkdocs", reason="not installed: mkdocs-material, the extra `site`")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(line, cwd=shape.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = [page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html")]
    assert not [page for page in pages if re.search(r"<(?:script|link)[^>]+\"https?:", page)]


def test_readmes_own_program_prints_what_stands_below_it(nih_workspace, tmp_path):
    """Run it beside the audit that `make audit` makes, and compare to the letter."""
    script = tmp_path / "page-README.py"
    script.write_text(only_python(README), encoding="utf-8")
    done = run_python(script, nih_workspace.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout == blocks(README, "text")[0]


def test_the_chart_of_the_scorecard_shows_its_table():
    """docs/scorecard.svg is what scripts/write_scorecard.py draws from the table: else `--chart`."""
    page, chart = write_scorecard.PAGE, write_scorecard.CHART
    table = write_scorecard.read_table(page.read_text(encoding="utf-8"))
    assert chart.read_text(encoding="utf-8") == write_scorecard.draw(table)
    assert "(docs/scorecard.svg)" in README.read_text(encoding="utf-8")


def test_readme_is_short():
    """It fits on a few screens: at most 100 lines."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 100


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_prose_is_wrapped(page):
    """No line of prose is longer than 100 characters; code, tables and what a command writes may be."""
    text = BLOCK.sub("", GENERATED.sub("", page.read_text(encoding="utf-8")))
    prose = [line for line in text.splitlines() if not line.startswith(("|", "    ", "!["))]
    assert not [line for line in prose if len(line) > 100]


def test_the_manual_is_short():
    """README and docs/ together have at most 36,500 words; a bar of a table is none.

    35,000 for what there was when they were rewritten, 1,500 for judges that train on the signal.
    """
    words = [word for page in PAGES for word in page.read_text(encoding="utf-8").split() if re.search(r"\w", word)]
    assert len(words) <= 36_500


def test_the_example_trains_on_the_audit_that_is_there(quick_place, tmp_path):
    """examples/train_with_weights.py runs without a download where ./audit has a signal."""
    folder = shutil.copytree(quick_place, tmp_path / "place")
    done = run_python(shape.ROOT / "examples" / "train_with_weights.py", folder)
    assert done.returncode == 0, done.stderr
    assert "600 films, 3 findings" in done.stdout


def test_the_made_up_films_are_what_their_script_makes(tmp_path):
    """films.csv and experts.csv are the output of make_films.py, to the byte."""
    script = shutil.copy(shape.ROOT / "examples" / "make_films.py", tmp_path)
    done = run_python(script, tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("films.csv", "experts.csv"):
        assert (tmp_path / name).read_bytes() == (shape.ROOT / "examples" / name).read_bytes()
