"""A file of weights is pinned by its hash, told by its content, and refused in words where it is none."""

import hashlib
import io
import tarfile

import pytest
import torch
from safetensors.torch import save_file

from bpals.errors import JudgeError
from bpals.judges.weights import read_weights


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
