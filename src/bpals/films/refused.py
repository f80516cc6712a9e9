"""How a film is refused, and the limits past which it is.

truncated        the file, or the archive it stands in, ends early
corrupt          its bytes contradict themselves
unexpected_size  it holds more or fewer pixels than its header says, or has the shape of no film
giant            more than 50 million pixels
too_large        more than 128 MiB of file
bomb             it unpacks to far more than it is
tiny             a side below 32 pixels
blank            every pixel is the same
not_an_image     an error page, an empty file, zeros
format           an image, but neither PNG, JPEG nor DICOM
codec            a way of compressing pixels that is not read here
frames           a DICOM with several frames
missing          nothing under --images has its name
unreadable       the disk does not give it
changed          its archive is not the one that was listed
encrypted  link  unsafe_path  duplicate_name     members of archives that are not read
poison           preparing it ended its worker three times
"""

from __future__ import annotations

from bpals.types import Refusal

MOST_BYTES = 128 << 20
"""Bytes of one file: 50 million pixels of 16 bits, and room to spare."""
MOST_PIXELS = 50_000_000
"""Pixels of one film. The largest detectors have 20 million."""
LEAST_SIDE_PX = 32
MOST_ASPECT = 8
"""How many times longer than wide a film may be, or wider than long."""
MOST_MEMBERS = 500_000
"""Files in one archive; NIH's twelve hold 112,120 in all."""
MOST_RATIO = 200
"""How many times larger than its packed form a member may be. A film is packed two to ten times."""
SMALL_BYTES = 1 << 20
"""Below this size no ratio is a danger."""


class Refused(Exception):
    """A film is refused: raised where it is seen, and turned into its Refusal before it leaves the room."""

    def __init__(self, code: str, message: str) -> None:
        """Keep the reason."""
        super().__init__(message)
        self.refusal = Refusal(code=code, message=message)


def check_size(width_px: int, height_px: int) -> None:
    """Refuse a film for what its header says of its size, before anything is decoded."""
    size = f"{width_px:,} x {height_px:,} pixels"
    if width_px * height_px > MOST_PIXELS:
        raise Refused("giant", f"its header says {size}; more than {MOST_PIXELS:,} in all are not decoded")
    if min(width_px, height_px) < LEAST_SIDE_PX:
        raise Refused("tiny", f"it has {size}; a film has at least {LEAST_SIDE_PX} a side")
    if max(width_px, height_px) > MOST_ASPECT * min(width_px, height_px):
        raise Refused("unexpected_size", f"it has {size}: no film is {MOST_ASPECT} times longer than wide")
