"""The secret of an installation: its owner's alone, or it is not used."""

import os
import stat

import pytest

from bpals.room.people.sessions import SECRET_BYTES, read_secret


def test_s16_a_missing_secret_is_made_for_its_owner_alone(tmp_path):
    """S16: 32 bytes at 0600, whatever the umask; the next start reads the same."""
    path = tmp_path / "secret"
    before = os.umask(0)
    try:
        made, why = read_secret(path)
    finally:
        os.umask(before)
    assert why == "there was none"
    assert len(made) == SECRET_BYTES
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret(path) == (made, "")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_s16_a_secret_that_others_could_read_is_replaced(tmp_path, mode):
    """S16: it is not used again; the reason is told, so that it can be said that all are logged out."""
    path = tmp_path / "secret"
    first, _ = read_secret(path)
    path.chmod(mode)
    second, why = read_secret(path)
    assert second != first
    assert "others could read it" in why
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]


def test_s16_a_secret_that_is_cut_off_or_a_link_is_replaced(tmp_path):
    """S16: nobody puts a file of his own choosing in its place."""
    path = tmp_path / "secret"
    path.write_bytes(b"short")
    path.chmod(0o600)
    assert read_secret(path)[1] == "it was cut off"
    known = tmp_path / "known"
    known.write_bytes(b"k" * SECRET_BYTES)
    known.chmod(0o600)
    path.unlink()
    path.symlink_to(known)
    made, why = read_secret(path)
    assert why == "it was no plain file"
    assert made != known.read_bytes() == b"k" * SECRET_BYTES
    assert not path.is_symlink()
