"""A file of weights: downloaded whole or not at all, pinned by its hash, told by its content."""

import hashlib
import http.server
import io
import tarfile
import threading

import pytest
import torch
from safetensors.torch import save_file

from bpals.errors import JudgeError, UsageError
from bpals.judges.checkpoint import open_checkpoint
from bpals.judges.weights import fetch, read_weights


@pytest.fixture
def saved(tmp_path):
    """A state dict of one tensor."""
    path = tmp_path / "w.pt"
    torch.save({"w": torch.arange(3.0)}, path)
    return path


def test_m02_a_file_with_another_hash_is_refused_and_both_are_named(saved):
    """M02: nothing is loaded; the hash that it has can be copied from the line."""
    found = hashlib.sha256(saved.read_bytes()).hexdigest()
    assert read_weights(saved, found).sha256 == found
    assert read_weights(saved).sha256 == found
    with pytest.raises(JudgeError, match=f"has the sha256 {found}, not {'0' * 64}"):
        read_weights(saved, "0" * 64)


def test_the_hash_is_looked_at_before_anything_is_read(tmp_path):
    """What is no weights at all is refused for its hash first."""
    (tmp_path / "w.pt").write_bytes(b"nothing")
    with pytest.raises(JudgeError, match="has the sha256"):
        read_weights(tmp_path / "w.pt", "0" * 64)


def tarred():
    """A tar, as torch wrote them before 2017."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    return written.getvalue()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty. Download it again"),
        (
            b"PK\x03\x04",
            "no whole one .*a download that was cut off or damaged. Download it again, and compare its sha256",
        ),
        (b"\x89HDF\r\n\x1a\n", "Keras saves it. Convert it to ONNX"),
        (
            b"<!DOCTYPE html>",
            "a web page that was saved in the place of the file. Download it again, and compare its sha",
        ),
        (b"<!doctype html><html>404", "a web page that was saved"),
        (b"\xef\xbb\xbf\n <HTML>", "a web page that was saved"),
        (b"version https://git-lfs", "git lfs pull"),
        (tarred(), "a tar, as torch saved weights before 2017"),
        (b"\x80\x02]q\x00.", "no torch file"),
        (b"hello", "no torch file"),
    ],
)
def test_what_is_no_weights_is_named_for_what_it_is(tmp_path, content, why):
    """The first bytes tell; a name that ends in .pth.tar does not."""
    path = tmp_path / "model.pth.tar"
    path.write_bytes(content)
    with pytest.raises(JudgeError, match=why):
        read_weights(path)


def test_half_a_file_is_called_a_download_that_was_cut_off(tmp_path):
    """Of either format of torch, and of safetensors: what to do next stands with it."""
    whole = {"fc.weight": torch.ones(40, 40)}
    torch.save(whole, tmp_path / "new.pt")
    torch.save(whole, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save_file(whole, tmp_path / "safe.pt")
    for name in ("new.pt", "old.pt", "safe.pt"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(JudgeError, match=r"cut off.*sha256"):
            read_weights(path)


@pytest.mark.parametrize("thing", [{"epoch": 3, "lr": 0.1}, [1, 2], 3, {"state_dict": {}}])
def test_a_file_that_holds_no_weights_is_refused(tmp_path, thing):
    """It says what was found instead, and what to save."""
    torch.save(thing, tmp_path / "w.pt")
    with pytest.raises(JudgeError, match=r"no weights.*state_dict\(\)"):
        read_weights(tmp_path / "w.pt")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    """A folder too."""
    for path in (tmp_path / "none.pt", tmp_path):
        with pytest.raises(JudgeError, match="cannot be read"):
            read_weights(path)


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
