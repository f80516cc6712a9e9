"""`import bpals` only defines names: nothing heavy is loaded and nothing in the process is changed."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import shape

ENVIRONMENT = os.environ | {"PYTHONPATH": str(shape.SRC)}
HEAVY = {
    "torch",
    "sklearn",
    "cleanlab",
    "matplotlib",
    "pandas",
    "pyarrow",
    "scipy",
    "lightgbm",
    "PIL",
    "fastapi",
    "ray",
    "aiohttp",
    "sqlalchemy",
    "transformers",
}

PROBE = textwrap.dedent(
    """
    import json, logging, os, sys, warnings
    import jinja2, numpy, polars, rich.console, threadpoolctl, typer   # what these change is theirs

    def state():
        return {
            "filters": [str(entry) for entry in warnings.filters],
            "showwarning": repr(warnings.showwarning),
            "handlers": [repr(handler) for handler in logging.getLogger().handlers],
            "level": logging.getLogger().level,
            "excepthook": repr(sys.excepthook),
            "environment": sorted(os.environ.items()),
            "random": repr(numpy.random.get_state()[1][:3]),
            "folder": os.getcwd(),
        }

    written = []

    def watch(event, arguments):
        if event == "open" and isinstance(arguments[2], int):
            if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                written.append(str(arguments[0]))
        if event in {"os.mkdir", "os.rename", "os.remove", "socket.connect", "subprocess.Popen"}:
            written.append(event)

    before = state()
    modules = set(sys.modules)
    sys.addaudithook(watch)
    import bpals
    names = written[:]
    print(json.dumps({"before": before, "after": state(), "touched": names,
                      "loaded": sorted({name.split(".")[0] for name in sys.modules})}))
    """
)


def probe(script, folder):
    """Run a script in a fresh process."""
    return subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", script],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What importing bpals did to a fresh process in an empty folder."""
    folder = tmp_path_factory.mktemp("empty")
    done = probe(PROBE, folder)
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir())
    return json.loads(done.stdout)


def test_importing_loads_nothing_heavy(seen):
    """A laptop with the core install has none of these; a machine that has them does not wait for them."""
    assert not HEAVY & set(seen["loaded"])


def test_importing_changes_nothing_in_the_process(seen):
    """No warnings filter, logging handler, exception hook, environment variable or random state is touched."""
    assert seen["after"] == seen["before"]


def test_importing_touches_no_file(seen):
    """No file is written, no folder made, no connection opened, no program started."""
    assert seen["touched"] == []


def test_a_write_would_be_seen(tmp_path):
    """The watch above is not blind: a module that writes while it is imported is caught."""
    noisy = "open('left-behind', 'w').close()\nimport warnings\nwarnings.simplefilter('ignore')\n"
    (tmp_path / "noisy.py").write_text(noisy)
    seen = json.loads(probe(PROBE.replace("import bpals", "import noisy"), tmp_path).stdout)
    assert seen["touched"] == ["left-behind"]
    assert seen["after"]["filters"] != seen["before"]["filters"]
