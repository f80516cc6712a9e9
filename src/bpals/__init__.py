"""bpals tells you how far to trust each label of a chest X-ray dataset, and shows its evidence.

    import bpals

    run = bpals.audit()          # the embedded NIH record: no image, no GPU, no key
    run.signal                   # a Polars frame: one row per label, with its trust, flag and reasons

    signal = bpals.load_signal("audit")
    bpals.targets(signal)        # soft targets for each image and finding: train on these
    bpals.mask(signal)           # labels as 1, 0 or NaN where the label is doubtful
    bpals.weights(signal)        # a weight for each image and finding, for your loss
    bpals.with_targets           # a TorchXRayVision dataset that uses the targets
    bpals.find_label_issues      # cleanlab's function of arrays, also by patient
    bpals.scorecard              # the signal against radiologists
    bpals.next_reviews("audit")  # what an expert should read next
    bpals.plan_rate              # what to read at random, so that
    bpals.rate                   # tells the error rate of the labels, with intervals

    bpals.import_reviews("audit", "reads.csv")   # reads from a file, kept; read twice, they are one
    bpals.export_reviews("audit", "out.csv")     # every review, one row per read
    bpals.export_signal("audit", "signal.csv")   # the signal, for other tools

    bpals.run_judge("table:scores.csv")          # an image judge, beside the metadata judge
    bpals.run_probe(images="films")              # one that learns to read images, on a CPU
    bpals.compare("mine", "record")              # where two judges differ, and who was right

The functions are documented in docs/api.md, the words in docs/glossary.md.
"""

from typing import TYPE_CHECKING, Any

from bpals.version import VERSION as __version__  # noqa: N811  the name that everybody expects

if TYPE_CHECKING:
    from bpals.judges.function import judge
    from bpals.judges.runner.transport import Endpoint
    from bpals.signal.label_issues import find_label_issues, get_label_quality_scores
    from bpals.signal.queue import Draw
    from bpals.signal.training import mask, targets, weights, with_targets
    from bpals.signal.value import Worth
    from bpals.tasks.audit import Run, audit, load_signal
    from bpals.tasks.compare import compare
    from bpals.tasks.judge import Order, run_judge
    from bpals.tasks.probe import run_probe
    from bpals.tasks.rate import plan_rate, rate
    from bpals.tasks.reading_list import next_reviews
    from bpals.tasks.review_files import export_reviews, export_signal, import_reviews, load_reviews
    from bpals.tasks.score import scorecard

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
    "export_signal",
    "find_label_issues",
    "get_label_quality_scores",
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
    "targets",
    "weights",
    "with_targets",
]


def __getattr__(name: str) -> Any:  # noqa: C901, PLR0911, PLR0912  one case per module
    """Import the module that has this name: `import bpals` alone loads none of them."""
    match name:
        case "audit" | "load_signal" | "Run":
            from bpals.tasks import audit

            return getattr(audit, name)
        case "targets" | "mask" | "weights" | "with_targets":
            from bpals.signal import training

            return getattr(training, name)
        case "find_label_issues" | "get_label_quality_scores":
            from bpals.signal import label_issues

            return getattr(label_issues, name)
        case "scorecard":
            from bpals.tasks import score

            return getattr(score, name)
        case "next_reviews":
            from bpals.tasks import reading_list

            return getattr(reading_list, name)
        case "Draw":
            from bpals.signal import queue

            return getattr(queue, name)
        case "Worth":
            from bpals.signal import value

            return getattr(value, name)
        case "rate" | "plan_rate":
            from bpals.tasks import rate

            return getattr(rate, name)
        case "import_reviews" | "export_reviews" | "load_reviews" | "export_signal":
            from bpals.tasks import review_files

            return getattr(review_files, name)
        case "judge":
            from bpals.judges import function

            return getattr(function, name)
        case "run_judge" | "Order":
            from bpals.tasks import judge

            return getattr(judge, name)
        case "Endpoint":
            from bpals.judges.runner import transport

            return getattr(transport, name)
        case "run_probe":
            from bpals.tasks import probe

            return getattr(probe, name)
        case "compare":
            from bpals.tasks import compare

            return getattr(compare, name)
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names before they are loaded."""
    return sorted({*globals(), *__all__})
