"""Weights are downloaded only from where the user pointed, whole or not at all, and only if they are the right ones."""

import hashlib
import http.server
import threading

import pytest

from bpals.errors import JudgeError, UsageError
from bpals.judges.checkpoint import open_checkpoint
from bpals.judges.weights import fetch

CONTENT = bytes(range(256)) * 9000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LARGEST = 10**7


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves one file well, and others badly."""

    def do_GET(self):
        """Answer by the path."""
        self.server.asked.append(self.path)
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
            self.end_headers()
            return
        if self.path == "/none.pt":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:5000] if self.path == "/short.pt" else CONTENT)

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def server():
    """A server on this machine that notes what it is asked."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def left(folder):
    """Every file that a download left behind."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_file_is_fetched_once_and_kept_under_its_name(server, tmp_path):
    """The second time nobody is asked; a damaged copy is fetched again."""
    first = fetch(f"{server.url}/files/nih-densenet121.pt", SHA256, tmp_path, largest=LARGEST)
    assert first.read_bytes() == CONTENT
    assert first.name == "nih-densenet121.pt"
    assert fetch(f"{server.url}/files/nih-densenet121.pt", SHA256, tmp_path, largest=LARGEST) == first
    assert len(server.asked) == 1
    first.write_bytes(CONTENT[:-1])
    assert fetch(f"{server.url}/files/nih-densenet121.pt", SHA256, tmp_path, largest=LARGEST).read_bytes() == CONTENT
    assert left(tmp_path) == [first]


def test_m02_a_download_with_another_hash_is_not_kept(server, tmp_path):
    """M02: both hashes are named."""
    with pytest.raises(JudgeError, match=f"sha256 {SHA256}, not {'1' * 64}"):
        fetch(f"{server.url}/w.pt", "1" * 64, tmp_path, largest=LARGEST)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "why"),
    [("/none.pt", "Not Found"), ("/short.pt", "broke off after 5,000 of 2,304,000 bytes"), ("/large.pt", "sends more")],
)
def test_what_does_not_come_whole_is_not_kept(server, tmp_path, path, why):
    """Missing, cut off, or larger than weights may be."""
    with pytest.raises(JudgeError, match=why):
        fetch(f"{server.url}{path}", SHA256, tmp_path, largest=10_000 if path == "/large.pt" else LARGEST)
    assert left(tmp_path) == []


def test_a_server_that_is_not_there_is_said(tmp_path):
    """In one line, with the address."""
    with pytest.raises(JudgeError, match=r"127.0.0.1:9/w.pt' .*refused"):
        fetch("http://127.0.0.1:9/w.pt", SHA256, tmp_path, largest=LARGEST)


@pytest.mark.parametrize(
    "elsewhere",
    ["http://192.0.2.1/w.pt", "http://169.254.169.254/latest", "ftp://127.0.0.1/w.pt", "https://a:b@c/w.pt"],
)
def test_a_redirect_is_followed_only_to_where_a_user_may_point(server, tmp_path, elsewhere):
    """Weights lie behind redirects; to this machine or by https, and not elsewhere."""
    moved = fetch(f"{server.url}/moved/w.pt?{server.url}/files/w.pt", SHA256, tmp_path, largest=LARGEST)
    assert moved.read_bytes() == CONTENT
    with pytest.raises(JudgeError, match="is not downloaded from"):
        fetch(f"{server.url}/moved?{elsewhere}", "2" * 64, tmp_path, largest=LARGEST)


@pytest.mark.parametrize("url", ["http://192.0.2.1/w.pt", "file:///etc/passwd", "https://name:secret@host/w.pt"])
def test_an_address_that_is_not_asked_is_refused_before_anything_happens(tmp_path, url):
    """Plain http to another machine, a file, a password; what stands before an @ is not repeated."""
    with pytest.raises(JudgeError, match="is not downloaded from") as refused:
        fetch(url, SHA256, tmp_path / "none", largest=LARGEST)
    assert "secret" not in str(refused.value)
    assert not (tmp_path / "none").exists()


def test_an_address_without_a_hash_is_refused_and_nobody_is_asked(server):
    """Whoever downloads weights says which."""
    for spec in (f"{server.url}/w.pt", f"{server.url}/w.pt@main"):
        target, _, revision = spec.partition("@")
        with pytest.raises(UsageError, match="pinned by its hash"):
            open_checkpoint("xrv", target, revision)
    assert server.asked == []
