"""The probe: reads films through a frozen backbone, and has learnt from other patients what the labels look like.

    films -> features (a backbone that was never trained here) -> a linear probe a finding -> judgments

Cross-fitted by patient, as the record judge is: no claim can reach the answer about itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from bpals.chronology import patients
from bpals.findings import Vocabulary
from bpals.judges import timeline
from bpals.judges.crossfit import LEAST_CLAIMS, LEAST_FILMS, PENALTIES, CrossFitted, Progress, cross_fit
from bpals.judges.moments import Features, Told
from bpals.plural import several
from bpals.types import KIND, OUTCOME, JudgeCard, Notice, answers_schema

VERSION = "1"
DECIMALS = 6
LICENCE = "unknown"
NOTHING_LEARNT = "what the films of other patients show tells nothing of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJudge:
    """Answers for every film that was seen, finding by finding."""

    name: str = "probe-lite0"
    backbone: str = "lite0"
    sha256: str = ""
    """Of the backbone: everything that could change a feature."""
    engine: str = ""
    preparation: Mapping[str, object] = field(default_factory=dict)
    folds: int = 5
    by_patient: bool = True
    """False where the dataset does not name the patient of every film: then films of one may teach about each other."""

    @property
    def card(self) -> JudgeCard:
        """Say who this judge is."""
        return JudgeCard(
            judge=self.name,
            kind="image",
            version=VERSION,
            model=self.backbone,
            revision=f"sha256:{self.sha256}" if self.sha256 else "",
            engine="linear probe",
            preparation=dict(self.preparation),
            settings={
                "backbone_engine": self.engine,
                "folds": self.folds,
                "by_patient": self.by_patient,
                "penalties": list(PENALTIES),
                "least_films": LEAST_FILMS,
                "least_claims": LEAST_CLAIMS,
            },
            polarities=("present",),
            trained_on_target="yes",
            held_out=self.by_patient,
            evidence=(
                "Its backbone is frozen; the line on top of it is fitted on the dataset's own labels of other "
                f"{'patients' if self.by_patient else 'films'}, cross-fitted. It never sees the claim it judges, but "
                "it shares the labeller's habits."
            ),
            licence=LICENCE,
        )

    def read(
        self,
        images: pl.DataFrame,
        claims: pl.DataFrame,
        vocabulary: Vocabulary,
        features: Features,
        *,
        progress: Progress = lambda _share: None,
    ) -> pl.DataFrame:
        """Answer for every film that has features, in their order, finding by finding: as the table of a judge.

        Claims that are uncertain, and silence, teach nothing; every finding of every film is answered all the same.
        """
        seen = pl.DataFrame({"image_id": pl.Series(features.image_ids, dtype=pl.String)})
        films = seen.join(images, on="image_id", how="inner", maintain_order="left")
        heard = claims.join(seen, on="image_id", how="semi", maintain_order="left")
        names = patients(films).to_numpy().astype(np.str_)
        told = Told(
            states=timeline.state_matrix(films, heard, vocabulary),
            fold=timeline.fold_of(names, self.folds),
            folds=self.folds,
        )
        return self._judgments(films, vocabulary, cross_fit(features, told, progress), told)

    def _judgments(self, films: pl.DataFrame, vocabulary: Vocabulary, fitted: CrossFitted, told: Told) -> pl.DataFrame:
        """Lay the answers out, a row a film and finding."""
        middle, low, high = np.round(fitted.p_present.reshape(3, -1), DECIMALS)
        count = len(vocabulary.findings)
        why = np.full((self.folds, count), None, dtype=object)
        for place, reason in fitted.why.items():
            why[place] = reason
        table = pl.DataFrame(
            {
                "image_id": films["image_id"].gather(np.repeat(np.arange(films.height), count)),
                "finding": pl.Series(vocabulary.findings * films.height, dtype=vocabulary.enum),
                "p_present": pl.Series(middle).fill_nan(None),
                "p_low": pl.Series(low).fill_nan(None),
                "p_high": pl.Series(high).fill_nan(None),
                "why": pl.Series(why[told.fold].reshape(-1).tolist(), dtype=pl.String),
            }
        )
        silent, unfitted = pl.col("p_present").is_null(), pl.col("why").is_not_null()
        outcome = pl.when(unfitted).then(pl.lit("unsupported")).when(silent).then(pl.lit("abstained"))
        schema = answers_schema(vocabulary)
        return table.with_columns(
            judge=pl.lit(self.name),
            kind=pl.lit("image", dtype=KIND),
            outcome=outcome.otherwise(pl.lit("answered")).cast(OUTCOME),
            why=pl.when(silent & ~unfitted).then(pl.lit(NOTHING_LEARNT)).otherwise("why"),
            logit_present=pl.lit(None, dtype=pl.Float64),
            logit_absent=pl.lit(None, dtype=pl.Float64),
            mass=pl.lit(None, dtype=pl.Float64),
        ).select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def without_patients(images: pl.DataFrame) -> list[Notice]:
    """Say so where the dataset names no patient of some films: then films of one patient may teach about each other."""
    count = images["patient_id"].null_count()
    if not count:
        return []
    message = (
        f"of {several(images.height, 'film')} {several(count, 'names', 'name')} no patient: each counts as a patient "
        "of its own, so that a film may be judged by what was learnt from another film of the same patient. Map "
        "patient_id if the dataset has it"
    )
    return [Notice(code="no_patient", count=count, message=message)]
