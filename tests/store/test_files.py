"""Where a result comes from: the commit of the very checkout that runs, and the versions of the packages."""

import importlib.util
import shutil
import subprocess
from importlib.metadata import version

import pytest

import shape
from bpals.store import files

GIT = shutil.which("git")
needs_git = pytest.mark.skipif(GIT is None, reason="git is not installed")


@pytest.fixture
def checkout(tmp_path):
    """A folder with a copy of the module where a checkout has it; `commit()` of that copy speaks of that folder."""
    place = tmp_path / "src" / "bpals" / "store"
    place.mkdir(parents=True)
    shutil.copy(shape.SRC / "bpals" / "store" / "files.py", place)
    return tmp_path


def commit_of(folder):
    """What the copy of the module in a folder says."""
    spec = importlib.util.spec_from_file_location("copied", folder / "src" / "bpals" / "store" / "files.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.commit()


def git(folder, *words):
    """Run git in a folder and give what it prints."""
    named = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run([GIT, "-C", folder, *named, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def committed(folder):
    """Make a repository of a folder, with all that is in it."""
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "all")
    return git(folder, "rev-parse", "HEAD")


def test_the_packages_are_named_with_their_versions():
    """Those that can change a number are there; one that is not installed is left out, not made up."""
    named = files.packages()
    assert named["numpy"] == version("numpy")
    assert named["polars"] == version("polars")
    assert named["python"].startswith("3.")
    assert set(named) <= {"python", *files.PACKAGES}


def test_an_installed_package_has_no_commit(checkout):
    """Without a repository around it nothing is guessed."""
    assert commit_of(checkout) == (None, None)


@needs_git
def test_a_checkout_names_its_commit_and_says_whether_it_was_changed(checkout):
    """A changed file counts, a new one that git does not know does not."""
    head = committed(checkout)
    assert commit_of(checkout) == (head, False)
    (checkout / "new.txt").write_text("x")
    assert commit_of(checkout) == (head, False)
    with (checkout / "src" / "bpals" / "store" / "files.py").open("a") as file:
        file.write("\n")
    assert commit_of(checkout) == (head, True)


@needs_git
def test_a_repository_without_a_commit_has_none(checkout):
    """A fresh `git init` is no provenance."""
    git(checkout, "init", "--quiet")
    assert commit_of(checkout) == (None, None)


@needs_git
def test_another_repository_s_hook_does_not_lend_its_commit(checkout, tmp_path_factory, monkeypatch):
    """Inside a hook GIT_DIR names the repository of the hook; the commit is still that of the code that runs."""
    other = tmp_path_factory.mktemp("other")
    (other / "file").write_text("x")
    theirs, ours = committed(other), committed(checkout)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert theirs != ours
    assert commit_of(checkout) == (ours, False)


@needs_git
def test_a_broken_repository_is_no_provenance(checkout):
    """A `.git` that git cannot read gives nothing, and no traceback."""
    (checkout / ".git").write_text("gitdir: nowhere\n")
    assert commit_of(checkout) == (None, None)
