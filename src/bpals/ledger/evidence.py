"""The raw evidence of a reply, packed: what the model said, and its first tokens with their log-probs.

Two bytes count the tokens, then their log-probs follow as 4-byte floats, then the text and the tokens as UTF-8 with a
zero between: half the bytes of JSON through zlib, and a tenth of its time in the writer. Only what is longer than 256
bytes, a spoken answer, goes through zlib. The second byte of a zlib stream is never 0, that of a count always is.
"""

from __future__ import annotations

import struct
import zlib

from bpals.types import Reply

LONG = 256
MOST_TOKENS = 255
"""More are not kept; so the second byte of a packet is 0 unless it is compressed."""

_LARGEST = 3.4e38


def pack(reply: Reply) -> bytes | None:
    """Pack the text and the top tokens of a reply; none where there is neither."""
    top = reply.top[:MOST_TOKENS]
    if not top and not reply.text:
        return None
    words = [reply.text, *[token for token, _ in top]]
    joined = "\0".join(words)
    if joined.count("\0") > len(top):
        joined = "\0".join(word.replace("\0", "\u2400") for word in words)
    # A token may be half of a character: JSON gives it as a lone surrogate.
    packet = _numbers([value for _, value in top]) + joined.encode("utf-8", "surrogatepass")
    return zlib.compress(packet, 1) if len(packet) > LONG else packet


def _numbers(values: list[float]) -> bytes:
    form = f"<H{len(values)}f"
    try:
        return struct.pack(form, len(values), *values)
    except OverflowError:
        return struct.pack(form, len(values), *(max(-_LARGEST, min(_LARGEST, value)) for value in values))


def unpack(packet: bytes | None) -> tuple[str, tuple[tuple[str, float], ...]]:
    """Give the text and the top tokens with their log-probs, as 4-byte floats hold them."""
    if packet is None:
        return "", ()
    numbers, words = split(packet)
    text, *tokens = words.decode("utf-8", "surrogatepass").split("\0")
    return text, tuple(zip(tokens, struct.unpack(f"<{len(numbers) // 4}f", numbers), strict=True))


def split(packet: bytes) -> tuple[bytes, bytes]:
    """Part a packet into its floats and its words."""
    plain = zlib.decompress(packet) if packet[1] else packet
    end = 2 + 4 * plain[0]
    return plain[2:end], plain[end:]
