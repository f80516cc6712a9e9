"""bpals tells you how far to trust each label of a chest X-ray dataset, and shows its evidence.

    import bpals

    run = bpals.audit()          # the embedded NIH record: no image, no GPU, no key
    run.signal                   # a Polars frame: one row a claim, with its trust, flag and reasons

    signal = bpals.load_signal("audit")
    bpals.weights(signal)        # a weight for each image and finding, for your loss
    bpals.mask(signal)           # labels as 1, 0 or NaN where the label is not to be trusted
    bpals.scorecard              # the signal against radiologists

The functions are documented in docs/api.md, the words in docs/glossary.md.
"""

from bpals.audit import Run, audit, load_signal
from bpals.scoring import scorecard
from bpals.signal.weights import mask, weights
from bpals.version import VERSION as __version__  # noqa: N811  the name that everybody expects

__all__ = ["Run", "__version__", "audit", "load_signal", "mask", "scorecard", "weights"]
