"""The record judge: answers each claim from the rest of the dataset's own record, never from the claim.

Cross-fitted by patient: the networks that answer for a patient were fitted on other patients only. So no claim can
reach the answer about itself, neither through the fit nor through the evidence; flipping it changes no bit of that
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl
from threadpoolctl import threadpool_limits

from bpals.findings import Group, Vocabulary
from bpals.judges import network, timeline
from bpals.types import KIND, OUTCOME, JudgeCard, judgments_schema

VERSION = "1"
DECIMALS = 6
STUDENT_T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""97.5 % point of Student's t for the spread of that many networks."""

Progress = Callable[[float], None]
"""Called with the share of the answers that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordJudge:
    """Reads the record and answers for every claim."""

    folds: int = 5
    networks: int = 8
    """Networks a fold, each fitted on the patients under other random weights: their spread is the interval."""
    seed: int = 20171
    training: network.Training = field(default_factory=network.Training)

    name = "record"

    @property
    def card(self) -> JudgeCard:
        """Say who this judge is."""
        return JudgeCard(
            judge=self.name,
            kind="record",
            version=VERSION,
            trained_on_target="yes",
            evidence=(
                "It is fitted on the dataset's own labels of other patients, cross-fitted by patient; "
                "it never sees the claim it judges, but it shares the labeller's habits."
            ),
            held_out=True,
            licence="Apache-2.0",
            commercial_use="yes",
            settings=asdict(self),
        )

    def read(
        self,
        images: pl.DataFrame,
        claims: pl.DataFrame,
        vocabulary: Vocabulary,
        *,
        only_folds: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> pl.DataFrame:
        """Answer for every claim (or for those of some folds), as JUDGMENTS in the order of the claims."""
        record = timeline.read_record(images, claims, vocabulary)
        films = network.Films(evidence=record.evidence, states=record.states, single=record.others == 0)
        p_present, asked = self._cross_fit(films, record.patients, only_folds, progress)
        return self._judgments(images, claims, vocabulary, p_present, asked)

    def read_groups(
        self,
        images: pl.DataFrame,
        claims: pl.DataFrame,
        vocabulary: Vocabulary,
        groups: Sequence[Group],
        *,
        progress: Progress | None = None,
    ) -> pl.DataFrame:
        """Answer for groups as for findings of their own: one row a film and group, as JUDGMENTS.

        No claim of the film is heard here, because a member's claim gives away the group's.
        """
        record = timeline.read_record(images, claims, vocabulary)
        members = [[vocabulary.findings.index(name) for name in group.members] for group in groups]
        said = [group.claim(record.states[:, its])[:, None] for group, its in zip(groups, members, strict=True)]
        states = np.concatenate([record.states, *said], axis=1)
        nobody = np.zeros(len(states), dtype=bool)
        films = network.Films(evidence=record.evidence, states=states, single=nobody)
        p_present, asked = self._cross_fit(films, record.patients, None, progress)
        named = Vocabulary(name="groups", findings=tuple(group.name for group in groups))
        pairs = images.select("image_id").join(
            pl.DataFrame({"finding": pl.Series(named.findings, dtype=named.enum)}), how="cross"
        )
        return self._judgments(images, pairs, named, p_present[:, :, -len(groups) :], asked)

    def _cross_fit(
        self,
        films: network.Films,
        patients: npt.NDArray[np.str_],
        only_folds: Sequence[int] | None,
        progress: Progress | None,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Answer for each fold of patients from the others: probability, low and high; and which films were asked."""
        fold = timeline.fold_of(patients, self.folds)
        asked = list(range(self.folds)) if only_folds is None else list(only_folds)
        p_present = np.full((3, *films.states.shape), np.nan)
        for done, number in enumerate(asked):
            if progress:
                progress(done / len(asked))
            here = fold == number
            if here.any() and not here.all():
                p_present[:, here] = self._answer(films[~here], patients[~here], films[here])
        return p_present, np.isin(fold, asked)

    def _answer(
        self, others: network.Films, patients: npt.NDArray[np.str_], here: network.Films
    ) -> npt.NDArray[np.float64]:
        """Fit on some patients and answer for others; NaN where there is nothing to go by."""
        _, patient = np.unique(patients, return_inverse=True)
        logits = []
        with threadpool_limits(1):
            for member in range(self.networks):
                seed = self.seed + member
                drawn = np.random.default_rng([seed, 1]).exponential(size=int(patient.max()) + 1)
                fitted = network.fit(others, drawn[patient].astype(np.float32), self.training, seed)
                logits.append(fitted.logits(here))
        answers = _middle_and_interval(np.stack(logits))
        answers[:, :, ~others.known.any(axis=0)] = np.nan
        return answers

    def _judgments(
        self,
        images: pl.DataFrame,
        claims: pl.DataFrame,
        vocabulary: Vocabulary,
        p_present: npt.NDArray[np.float64],
        asked: npt.NDArray[np.bool_],
    ) -> pl.DataFrame:
        """Lay the answers beside the claims."""
        rows = images.select("image_id").with_columns(asked=pl.Series(asked)).with_row_index("row")
        placed = claims.join(rows, on="image_id", how="left", maintain_order="left").filter("asked")
        row, column = placed["row"].to_numpy(), placed["finding"].to_physical().to_numpy()
        middle, low, high = (pl.Series(side[row, column]).fill_nan(None) for side in p_present)
        answered = pl.when(pl.col("p_present").is_not_null()).then(pl.lit("answered")).otherwise(pl.lit("abstained"))
        return (
            placed.select(
                "image_id",
                "finding",
                judge=pl.lit(self.name),
                kind=pl.lit("record", dtype=KIND),
                p_present=middle,
                p_low=low,
                p_high=high,
            )
            .with_columns(outcome=answered.cast(OUTCOME))
            .select(judgments_schema(vocabulary).names())
        )


def _middle_and_interval(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Average the networks' probabilities; the interval comes from the spread of their logits."""
    middle = network.sigmoid(logits).mean(axis=0)
    spread = logits.std(axis=0, ddof=1) if len(logits) > 1 else np.zeros_like(middle)
    reach = STUDENT_T.get(len(logits), 1.96) * spread
    centre = logits.mean(axis=0)
    low = np.minimum(network.sigmoid(centre - reach), middle)
    high = np.maximum(network.sigmoid(centre + reach), middle)
    return np.round(np.stack([middle, low, high]), DECIMALS)
