"""Where a result comes from: the version, the commit, the packages."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("numpy", "polars", "threadpoolctl", "jinja2")


def packages() -> dict[str, str]:
    """Name the versions that a result may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> tuple[str | None, bool | None]:
    """Name the commit of the checkout that runs, and whether it was changed; (None, None) for an installed package."""
    checkout = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return None, None
    try:
        head = _ask(git, checkout, "rev-parse", "HEAD")
        changed = _ask(git, checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None, None
    return head.strip(), bool(changed.strip())


def _ask(git: str, checkout: Path, *words: str) -> str:
    # A hook of another repository sets GIT_DIR, which would name that one's commit.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    answer = subprocess.run(  # noqa: S603  fixed words, no shell
        [git, "-C", str(checkout), *words], capture_output=True, text=True, timeout=10, check=True, env=ours
    )
    return answer.stdout
