"""bpals tells you how far to trust each label of a chest X-ray dataset, and shows its evidence.

    import bpals

    run = bpals.audit()          # the embedded NIH record: no image, no GPU, no key
    run.signal                   # a Polars frame: one row a claim, with its trust, flag and reasons

    signal = bpals.load_signal("audit")
    bpals.weights(signal)        # a weight for each image and finding, for your loss
    bpals.mask(signal)           # labels as 1, 0 or NaN where the label is not to be trusted
    bpals.scorecard              # the signal against radiologists
    bpals.next_reviews("audit")  # what an expert should read next
    bpals.plan_rate              # what to read at random, so that
    bpals.rate                   # tells the error rate of the labels, with intervals

    bpals.import_reviews("audit", "reads.csv")   # reads from a file, kept; read twice, they are one
    bpals.export_reviews("audit", "out.csv")     # every review, one row a read

    bpals.run_judge("table:scores.csv")          # an image judge, beside the one that reads the record
    bpals.run_probe(images="films")              # one that learns to read films, on a CPU
    bpals.compare("mine", "record")              # where two judges differ, and who was right

The functions are documented in docs/api.md, the words in docs/glossary.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bpals.judges.function import judge
from bpals.signal.queue import Draw
from bpals.signal.training import mask, weights
from bpals.signal.value import Worth
from bpals.tasks.audit import Run, audit, load_signal
from bpals.tasks.rate import plan_rate, rate
from bpals.tasks.reading_list import next_reviews
from bpals.tasks.score import scorecard
from bpals.version import VERSION as __version__  # noqa: N811  the name that everybody expects

if TYPE_CHECKING:
    from bpals.judges.runner.transport import Endpoint
    from bpals.tasks.compare import compare
    from bpals.tasks.judge import Order, run_judge
    from bpals.tasks.probe import run_probe
    from bpals.tasks.review_files import export_reviews, import_reviews, load_reviews

__all__ = [
    "Draw",
    "Endpoint",
    "Order",
    "Run",
    "Worth",
    "__version__",
    "audit",
    "compare",
    "export_reviews",
    "import_reviews",
    "judge",
    "load_reviews",
    "load_signal",
    "mask",
    "next_reviews",
    "plan_rate",
    "rate",
    "run_judge",
    "run_probe",
    "scorecard",
    "weights",
]

_AT_USE = {
    "Endpoint": "bpals.judges.runner.transport",
    "Order": "bpals.tasks.judge",
    "compare": "bpals.tasks.compare",
    "export_reviews": "bpals.tasks.review_files",
    "import_reviews": "bpals.tasks.review_files",
    "load_reviews": "bpals.tasks.review_files",
    "run_judge": "bpals.tasks.judge",
    "run_probe": "bpals.tasks.probe",
}
"""Names that bring a database or an image library with them, and so are loaded when somebody asks for them."""


def __getattr__(name: str) -> Any:
    """Load what is loaded at use."""
    if name in _AT_USE:
        return getattr(import_module(_AT_USE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List what is loaded and what would be."""
    return sorted({*globals(), *__all__})
