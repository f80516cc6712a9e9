"""A hook of mkdocs: links out of docs/ work on the site as they do on a git host.

A page may link to any file of the repository, such as ../LOG.md or ../design/. No host is named anywhere, so the
site takes what is linked along, under repository/: Markdown as pages, other files as they are, a folder as a list.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS, ALONG = "docs", "repository"
LINK = re.compile(r"(\]\(|src=\")([^)\s\"#]*)(#[^)\s\"]*)?([)\"])")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: Any) -> Files:
    """Add every file outside docs/ that a page links to, and what those link to."""
    waiting = [f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        for target in linked(f"{page}/index.md" if (ROOT / page).is_dir() else page, _text(page)):
            if target in seen or target.startswith(f"{DOCS}/"):
                continue
            seen.add(target)
            path = ROOT / target
            uri = site_uri(target)
            if path.is_dir() or path.suffix == ".md":
                files.append(File.generated(config, uri, content=_text(target)))
                waiting.append(target)
            elif path.is_file():
                files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point every link inside the repository to where its target is on the site."""
    here = page.file.src_uri
    source = in_repository(here)

    def moved(found: re.Match[str]) -> str:
        opening, link, anchor, closing = found[1], found[2], found[3] or "", found[4]
        target = _target(source, link)
        if target is None:
            return found[0]
        return f"{opening}{posixpath.relpath(site_uri(target), posixpath.dirname(here) or '.')}{anchor}{closing}"

    return _outside_code(markdown, lambda prose: LINK.sub(moved, prose))


def linked(page: str, text: str) -> list[str]:
    """Give the repository paths that a page links to."""
    found = [_target(page, link) for _, link, _, _ in LINK.findall(FENCE.sub("", text))]
    return [target for target in found if target is not None]


def site_uri(path: str) -> str:
    """Say where a file of the repository is on the site."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    return f"{ALONG}/{path}/index.md" if (ROOT / path).is_dir() else f"{ALONG}/{path}"


def in_repository(uri: str) -> str:
    """Say which file of the repository a page of the site is."""
    return uri.removeprefix(f"{ALONG}/") if uri.startswith(f"{ALONG}/") else f"{DOCS}/{uri}"


def _target(page: str, link: str) -> str | None:
    if not link or re.match(r"[a-z]+:", link):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _text(path: str) -> str:
    whole = ROOT / path
    if not whole.is_dir():
        return whole.read_text(encoding="utf-8")
    names = sorted(file.name for file in whole.iterdir() if file.is_file())
    return f"# {path}\n\n" + "\n".join(f"- [{name}]({name})" for name in names) + "\n"


def _outside_code(markdown: str, change: Any) -> str:
    parts, last = [], 0
    for block in FENCE.finditer(markdown):
        parts += [change(markdown[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*parts, change(markdown[last:])])
