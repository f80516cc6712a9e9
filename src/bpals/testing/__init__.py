"""Contracts that anyone can run on a source, a judge, a signal or an export, and something tiny to run them on.

    from bpals.testing import check_image_judge, check_record_judge, tiny_dataset

    check_image_judge(my_judge)
    check_record_judge(MyJudge(), tiny_dataset())

What is wrong is said in one line, by raising ContractBroken.
"""

from bpals.testing.contracts import (
    check_judgments,
    check_record_judge,
    check_signal,
    check_source,
    flipped,
    moved,
    sample_claims,
    tiny_dataset,
)
from bpals.testing.fakes import skilled
from bpals.testing.image_judges import check_image_judge, tiny_film
from bpals.testing.kinds import check_export, check_kind, tiny_reviews

__all__ = [
    "check_export",
    "check_image_judge",
    "check_judgments",
    "check_kind",
    "check_record_judge",
    "check_signal",
    "check_source",
    "flipped",
    "moved",
    "sample_claims",
    "skilled",
    "tiny_dataset",
    "tiny_film",
    "tiny_reviews",
]
