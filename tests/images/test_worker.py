"""What a worker sends is text and pixels, and nothing it could send would harm the run."""

import os
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shape
from bpals.errors import MissingExtra
from bpals.images.prepare import Preparation, prepare
from bpals.images.stream import GARBLED
from bpals.images.worker import pack, unpack
from bpals.types import Refusal

WORK = Preparation()


def test_what_is_packed_comes_back(film):
    """A film with its notes, and a refusal."""
    for outcome in (prepare(film(), WORK), Refusal(code="blank", message="every pixel has the same grey")):
        assert unpack(WORK, pack(WORK, outcome)) == outcome


@settings(max_examples=200, derandomize=True, deadline=5000)
@given(st.binary() | st.text().map(lambda text: len(text.encode()).to_bytes(4, "little") + text.encode()))
def test_an_answer_that_no_sound_worker_gives_is_known_as_such(reply):
    """F24: no exception outside the list, for which the worker is replaced."""
    try:
        unpack(WORK, reply)
    except GARBLED:
        return


def test_an_answer_without_an_end_is_known_as_such():
    """F24: a hundred thousand brackets."""
    with pytest.raises(GARBLED):
        unpack(WORK, (100_000).to_bytes(4, "little") + b"[" * 100_000)


def test_a_missing_package_stops_the_run_with_the_line_to_type(tmp_path):
    """A DICOM without pydicom: what to type, from a worker and from this process."""
    (tmp_path / "a.dcm").write_bytes(
        bytes(128) + b"DICM" + bytes.fromhex("02001000554914 00".replace(" ", "")) + b"1.2.840.10008.1.2.1\0"
    )
    (tmp_path / "pydicom.py").write_text("raise ImportError")
    script = textwrap.dedent(
        """
        import sys
        from bpals.errors import MissingExtra
        from bpals.images.prepare import Preparation
        from bpals.images.stream import prepared
        from bpals.images.collection import open_index
        index = open_index(sys.argv[1])
        for workers in (0, 1):
            try:
                list(prepared(index, index.found, Preparation(), workers=workers))
            except MissingExtra as error:
                print(error)
        """
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{shape.SRC}"}
    line = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(MissingExtra.of("A film in DICOM", "dicom"))] * 2
