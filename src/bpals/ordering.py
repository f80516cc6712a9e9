"""The order of many numbers: what numpy's stable argsort gives, in less than half of its time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def order(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sort: give the places of the values from the least to the greatest, equals in the order in which they stand.

    numpy sorts numbers of 16 bits by counting, and longer ones by comparing, which takes ten times as long. So values
    are sorted by their nearest numbers of 32 bits, half by half; then those that have one such number in common, by
    themselves.
    """
    with np.errstate(over="ignore"):
        near = values.astype(np.float32) + np.float32(0)  # so that -0 is 0
    bits = near.view(np.int32)
    # As whole numbers, in the same order: floats have a sign, then an exponent, then digits.
    whole = np.where(bits < 0, ~bits, bits | np.int32(-(2**31))).view(np.uint32)
    place = np.argsort(whole.astype(np.uint16), kind="stable")
    place = place[np.argsort((whole >> 16).astype(np.uint16)[place], kind="stable")]
    ordered, rough = values[place], near[place]
    alike = rough[1:] == rough[:-1]
    apart = alike & (ordered[1:] != ordered[:-1])
    if apart.any():
        group = np.cumsum(np.append(False, ~alike))
        mixed = np.flatnonzero(np.bincount(group[1:][apart], minlength=group[-1] + 1)[group])
        place[mixed] = place[mixed][np.argsort(ordered[mixed], kind="stable")]
    return place
