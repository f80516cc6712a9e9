"""Made-up films in every form: as PNG, JPEG and DICOM, whole and broken, loose and in archives."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tarfile
import textwrap
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

import shape
from bpals.images.prepare import Preparation, prepare


@pytest.fixture(scope="session")
def draw():
    """Draw a film of 8-bit grey: a gradient under noise, so that every line and bit of it matters."""

    def drawn(seed=0, *, width=96, height=80, low=0, high=255):
        noise = np.random.default_rng(seed).integers(0, 60, (height, width))
        ramp = np.linspace(0, 195, width)[None, :] + noise
        grey = low + (ramp - ramp.min()) * (high - low) / (ramp.max() - ramp.min())
        return np.rint(grey).astype(np.uint8)

    return drawn


@pytest.fixture(scope="session")
def save():
    """Write an array or an image as a file's bytes."""

    def saved(picture, kind="PNG", **options):
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
        written = io.BytesIO()
        image.save(written, format=kind, **options)
        return written.getvalue()

    return saved


@pytest.fixture(scope="session")
def film(draw, save):
    """Make the bytes of a sound PNG; another seed is another film."""

    def made(seed=0, **size):
        return save(draw(seed, **size))

    return made


@pytest.fixture(scope="session")
def chunk():
    """Write one chunk of a PNG, with its checksum."""

    def written(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return written


@pytest.fixture(scope="session")
def packed_zeros():
    """Deflate a hundred MB of zeros, raw or as zlib: 100 kB."""

    def packed(bits=zlib.MAX_WBITS):
        packer = zlib.compressobj(1, zlib.DEFLATED, bits)
        return b"".join(packer.compress(bytes(1 << 20)) for _ in range(100)) + packer.flush()

    return packed


@pytest.fixture(scope="session")
def black_png(chunk):
    """Write a whole black PNG of any size without holding its pixels."""

    def written(width, height, *more):
        packer, line = zlib.compressobj(1), bytes(width + 1)
        packed = [*(packer.compress(line) for _ in range(height)), packer.flush()]
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        return b"".join([b"\x89PNG\r\n\x1a\n", header, *more, chunk(b"IDAT", b"".join(packed)), chunk(b"IEND", b"")])

    return written


@pytest.fixture(scope="session")
def seen():
    """Prepare bytes and give the pixels that a judge sees; a refusal fails the test with its reason."""

    def look(content, side_px=4096):
        done = prepare(content, Preparation(side_px=side_px))
        assert hasattr(done, "film"), done
        return np.asarray(Image.open(io.BytesIO(done.film.png)))

    return look


@pytest.fixture(scope="session")
def refusal():
    """Prepare bytes that must be refused, and give the code."""

    def refused(content):
        done = prepare(content, Preparation())
        assert not hasattr(done, "film"), "it was accepted"
        assert "\n" not in done.message
        return done.code

    return refused


@pytest.fixture(scope="session")
def memory_of():
    """Prepare files in a process of their own: the outcomes, and by how many MB the process grew at most."""
    script = textwrap.dedent(
        """
        import sys
        from bpals.images.prepare import Preparation, prepare

        def peak_mb():
            lines = open("/proc/self/status").read().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

        warm, *suspects = (open(path, "rb").read() for path in sys.argv[1:])
        prepare(warm, Preparation())
        before = peak_mb()
        codes = [getattr(prepare(suspect, Preparation()), "code", "accepted") for suspect in suspects]
        print(peak_mb() - before, *codes)
        """
    )

    def measure(folder, warm, *suspects):
        files = [folder / f"film{number}" for number in range(1 + len(suspects))]
        for file, content in zip(files, (warm, *suspects), strict=True):
            file.write_bytes(content)
        environment = os.environ | {"PYTHONPATH": str(shape.SRC)}
        line = [sys.executable, "-c", script, *map(str, files)]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
        grown, *codes = done.stdout.split()
        return codes, float(grown)

    if not os.path.exists("/proc/self/status"):  # noqa: PTH110
        pytest.skip("this system does not say how much memory a process had at most")
    return measure


@pytest.fixture(scope="session")
def pack_tar():
    """Write a tar: names and bytes, or TarInfo for what is no file."""

    def packed(path, members, mode="w"):
        with tarfile.open(path, mode) as archive:
            for name, content in members.items():
                if isinstance(content, tarfile.TarInfo):
                    archive.addfile(content)
                else:
                    about = tarfile.TarInfo(name)
                    about.size = len(content)
                    archive.addfile(about, io.BytesIO(content))
        return path

    return packed


@pytest.fixture(scope="session")
def pack_zip():
    """Write a zip: pairs of a name, or ZipInfo, and bytes; a name may come twice."""

    def packed(path, members):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for about, content in members:
                archive.writestr(about, content)
        return path

    return packed
