"""Stage 1, lay out: labels and answers become matrices, one row per image and one column per finding or group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import ContractBroken
from bpals.findings import Group, Vocabulary
from bpals.numeric import NORMAL_95, SMALLEST, Matrix, logit, reports_of_films, sigmoid
from bpals.types import DEVICES, SAYS, Dataset, Reference, Reviews

Value = TypeVar("Value", bound=np.generic)
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.integer[Any]]
Place = Ints | slice

STATES: Mapping[str, float] = {"present": 1.0, "absent": 0.0, "uncertain": 0.5}
TINY = 1e-12
"""Scores may be smaller than any probability that is reported; nearer to 0 or 1 than this they are one."""
BLOCK = 4096
"""Images at a time."""
PRESENT, ABSENT, UNKNOWN = range(3)
"""The places of DEVICES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The labels and one judge's answers, for every image and finding."""

    image_ids: pl.Series
    findings: tuple[str, ...]
    states: Matrix
    """The label: 1 present, 0 absent, 0.5 uncertain, NaN silent."""
    p_present: Matrix
    """The judge's probability; NaN where it did not answer."""
    spread: Matrix
    """Standard deviation of its logit."""
    answered: npt.NDArray[np.int32]

    @property
    def usual(self) -> Matrix:
        """The mean probability of each finding; NaN where nobody answered."""
        return usual(self.p_present)

    def column(self, finding: str) -> int:
        """Find a finding's column."""
        return self.findings.index(finding)

    def members(self, group: Group) -> list[int]:
        """Find the columns of a group's members."""
        return [self.column(name) for name in group.members]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAnswers:
    """What one image judge answers, for every image and finding."""

    name: str
    p_present: Matrix
    """The judge's own probability, as it gave it; NaN where it did not answer."""
    evidence: Matrix
    """Its logits, each finding's with mean 0 and deviation 1 over the images it answered; NaN where it did not."""
    used: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """By finding: whether it has a signal there. Elsewhere its answers move nothing."""
    model: str = ""
    """The model behind it: judges of one model count as correlated. Empty where nobody said."""
    trained: bool = False
    """Whether it was trained on the labels of these very images: then it may only repeat them."""
    head: str = ""
    """The first judge of its group of correlated judges. Empty where it is alone."""
    vote: float = 1.0
    """How it counts inside its group, which has one vote: the names of one judge share what it counts."""

    @property
    def answered(self) -> Bools:
        """Where it answered."""
        return np.asarray(~np.isnan(self.p_present))

    @property
    def usual(self) -> Matrix:
        """Its mean probability of each finding; NaN where it never answered."""
        return usual(self.p_present)

    def of_groups(self, pairs: Pairs, groups: Sequence[Group]) -> JudgeAnswers:
        """Answer about groups: a group is as evident as its most evident member, and answered if all members are."""
        p_present, evidence = [], []
        for group in groups:
            members = pairs.members(group)
            p_present.append(1 - np.prod(1 - self.p_present[:, members], axis=1))
            # The most evident member, because one is enough for the group to be there.
            evidence.append(self.evidence[:, members].max(axis=1))
        p, z = np.stack(p_present, axis=1), standardised(np.stack(evidence, axis=1))
        return JudgeAnswers(name=self.name, p_present=p, evidence=z, model=self.model, trained=self.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Whether each image shows devices, and who sees them."""

    state: npt.NDArray[np.uint32]
    """A place in DEVICES for each image."""
    seen_by: pl.Series
    """The judges that see devices where they are present, else null: a sentence per image."""

    @property
    def column(self) -> pl.Series:
        """The states as words."""
        return pl.Series("devices", DEVICES.categories, dtype=DEVICES).gather(self.state)

    @property
    def present(self) -> Matrix:
        """1 where devices are seen, else 0."""
        return np.asarray(self.state == PRESENT, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmChecks:
    """What the checks say of each image of a dataset."""

    column: pl.Series
    """The checks that fired, a list per image; null where nobody looked at it."""
    fired: tuple[pl.Series, ...]
    """Of each check a sentence per image, null where it did not fire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The image judges of an audit, and what is known of the images themselves."""

    judges: tuple[JudgeAnswers, ...]
    fold: Ints
    """The metadata judge's fold of each image: its answers rest on no label of the fold's other patients."""
    devices: Devices
    checks: FilmChecks | None = None
    """What is odd about the images themselves; None where nobody looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The findings, or the groups of findings, with the answers of every judge about them."""

    record: Pairs
    """The labels, and the metadata judge's answers."""
    judges: tuple[JudgeAnswers, ...] = ()

    def with_used(self, skill: pl.DataFrame | None) -> Level:
        """Mark where each judge has a signal, by its measured skill (SKILL); a judge nobody measured has none."""
        if skill is None:
            return self
        signal = {(judge, finding): has for judge, finding, has in skill.select("judge", "finding", "signal").rows()}
        findings = self.record.findings
        used = [np.array([signal.get((its.name, name), False) for name in findings], dtype=bool) for its in self.judges]
        judges = tuple(replace(its, used=where) for its, where in zip(self.judges, used, strict=True))
        return replace(self, judges=judges)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """Everything that is known before expert labels: the first stage of the signal."""

    dataset: Dataset
    findings: Level
    groups: Level | None
    """Where experts speak of groups: each as a finding of its own."""
    named: tuple[Group, ...]
    panel: Panel | None
    reports: pl.DataFrame
    """The report of each image (`reports_of_films`)."""

    @property
    def levels(self) -> list[Level]:
        """The findings, then the groups."""
        return [self.findings] if self.groups is None else [self.findings, self.groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hard:
    """Where readers would split on one finding."""

    p_split: Matrix
    """A number an image; NaN where nobody answered about the finding."""
    cut: float
    """Above it a label of low trust is hard: the median of the reviewed labels of low trust."""
    usual: float
    """The share of the reviewed pairs that did split."""
    pairs: int
    """How many pairs were read by several readers."""

    @property
    def split(self) -> Matrix:
        """Say where readers would split more often than over half of the reviewed labels of low trust: 1, 0, NaN."""
        return np.where(np.isnan(self.p_split), np.nan, (self.p_split > self.cut).astype(float))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A level on its way from the pool to the flags: P(present) of every pair, and what it rests on."""

    pairs: Pairs
    """The labels, and what the judges say together."""
    record: Pairs
    """The same with the metadata judge alone; it is `pairs` itself where there is no other judge."""
    judges: tuple[JudgeAnswers, ...]
    """The image judges, each with where it is used."""
    moved: Bools
    """Pairs in whose probability an image judge took part."""
    p_present: Matrix
    spread: Matrix
    fitted: Bools
    """Pairs whose probability comes from a fit on expert labels."""
    reviewed: Bools
    """... and was cross-fitted, because the pair is one of them."""
    fitted_by: str = "experts"
    """What that fit is called in the column `method`: a calibration from elsewhere, experts here, or both."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """For each calibrated finding, the reason that says so."""
    per_group: tuple[Matrix, ...] = ()
    """What each group of correlated image judges says by itself, where a fit may learn from it: logits."""
    hard: Mapping[str, Hard] = field(default_factory=dict)
    """For each finding of which enough was read: where readers would split."""


def plain_estimate(level: Level) -> Estimate:
    """Take what the metadata judge says as it is."""
    record = level.record
    none_true = np.zeros(record.states.shape, dtype=bool)
    return Estimate(
        pairs=record,
        record=record,
        judges=(),
        moved=none_true,
        p_present=record.p_present,
        spread=record.spread,
        fitted=none_true,
        reviewed=none_true,
    )


def groups_of(
    vocabulary: Vocabulary, reference: Reference | None = None, reviews: Reviews | None = None
) -> list[Group]:
    """Name the groups that experts speak of and whose members are all audited."""
    spoken: list[tuple[Reference | Reviews, pl.DataFrame]] = []
    if reference is not None:
        spoken.append((reference, reference.truth))
    if reviews is not None:
        spoken.append((reviews, reviews.table))
    groups = [group for source, _ in spoken for group in source.groups_within(vocabulary)]
    named = {name for _, table in spoken for name in table["finding"].unique()}
    return [group for group in dict.fromkeys(groups) if group.name in named]


def lay_out(
    dataset: Dataset,
    judgments: pl.DataFrame,
    panel: Panel | None = None,
    groups: Sequence[Group] = (),
    group_judgments: pl.DataFrame | None = None,
) -> LaidOut:
    """Lay labels and answers out; `judgments` are the metadata judge's, `group_judgments` what it says of groups."""
    record = lay_pairs(dataset.images, dataset.claims, judgments, dataset.vocabulary)
    judges = () if panel is None else panel.judges
    together = None
    if groups:
        together = Level(
            record=with_groups(record, groups, group_judgments),
            judges=tuple(judge.of_groups(record, groups) for judge in judges),
        )
    return LaidOut(
        dataset=dataset,
        findings=Level(record=record, judges=judges),
        groups=together,
        named=tuple(groups),
        panel=panel,
        reports=reports_of_films(dataset.images),
    )


def lay_pairs(images: pl.DataFrame, claims: pl.DataFrame, judgments: pl.DataFrame, vocabulary: Vocabulary) -> Pairs:
    """Lay labels and judgments out as matrices."""
    states = np.full((images.height, len(vocabulary.findings)), np.nan)
    meaning = np.array([STATES[says] for says in SAYS.categories])
    place = _places("claims", claims, images["image_id"], vocabulary.findings)
    states.ravel()[place] = meaning[claims["says"].to_physical().to_numpy()]
    return _judged(images["image_id"], vocabulary.findings, states, judgments)


def _judged(image_ids: pl.Series, findings: tuple[str, ...], states: Matrix, judgments: pl.DataFrame) -> Pairs:
    """Lay judgments beside states; the answers of several judges are averaged as logits.

    A table that does not keep the promise of its schema is refused: it would land on other pairs, or as no number.
    """
    total, variance, p_present = np.zeros(states.size), np.zeros(states.size), np.full(states.size, np.nan)
    answered = np.zeros(states.size, dtype=np.int32)
    answers = judgments.filter(pl.col("outcome") == "answered")
    given = answers["p_present"]
    if wrong := answers.height - int((given.is_between(0, 1) & given.is_not_nan()).sum()):
        raise ContractBroken(f"{wrong:,} judgments give no probability from 0 to 1. Give one to each that is answered")
    judges = answers["judge"].unique().sort()
    for judge in judges:
        its = answers.filter(pl.col("judge") == judge)
        place = _places("judgments", its, image_ids, findings)
        if not isinstance(place, slice) and (twice := int((np.bincount(place) > 1).sum())):
            raise ContractBroken(f"{judge} answers twice about {twice:,} pairs. Keep one answer a pair")
        low, high = (its[side].fill_null(its["p_present"]).to_numpy() for side in ("p_low", "p_high"))
        p_present[place] = its["p_present"].to_numpy()
        if len(judges) > 1:
            total[place] += logit(its["p_present"].to_numpy())
        variance[place] += _variance(low, high)
        answered[place] += 1
    # One judge's own probability is kept to the last bit: it does not go through logits.
    many = answered > 1
    p_present[many] = sigmoid(total[many] / answered[many])
    return Pairs(
        image_ids=image_ids,
        findings=findings,
        states=states,
        p_present=p_present.reshape(states.shape),
        spread=(np.sqrt(variance, out=variance) / np.maximum(answered, 1)).reshape(states.shape),
        answered=answered.reshape(states.shape),
    )


def _variance(low: Matrix, high: Matrix) -> Matrix:
    """Give the variance of a logit from its 95 % interval."""
    deviation = logit(high)
    deviation -= logit(low)
    deviation /= 2 * NORMAL_95
    return np.asarray(np.square(deviation, out=deviation))


def with_groups(pairs: Pairs, groups: Sequence[Group], judgments: pl.DataFrame | None = None) -> Pairs:
    """Make each group a finding of its own: present if a member is; its P as the judge gives it for the group.

    Where the judge was not asked about groups, P(group) = min(1, sum of its members' P).
    """
    states = np.stack([group.claim(pairs.states[:, pairs.members(group)]) for group in groups], axis=1)
    names = tuple(group.name for group in groups)
    if judgments is not None:
        answers = judgments.with_columns(pl.col("finding").cast(pl.String)).filter(pl.col("finding").is_in(list(names)))
        return _judged(pairs.image_ids, names, states, answers.with_columns(pl.col("finding").cast(pl.Enum(names))))
    p_present, spread, answered = [], [], []
    for group in groups:
        members = pairs.members(group)
        p = pairs.p_present[:, members]
        # The sum, not 1 - product: a labeller that reads reports seldom names two members at once.
        summed = np.minimum(p.sum(axis=1), 1 - SMALLEST)
        p_present.append(summed)
        moved = np.sqrt(((p * (1 - p) * pairs.spread[:, members]) ** 2).sum(axis=1))
        spread.append(moved / np.maximum(summed * (1 - summed), SMALLEST))
        answered.append(pairs.answered[:, members].min(axis=1))
    p, deviation, count = (np.stack(columns, axis=1) for columns in (p_present, spread, answered))
    return replace(pairs, findings=names, states=states, p_present=p, spread=deviation, answered=count)


def standardised(logits: Matrix) -> Matrix:
    """Give each column mean 0 and deviation 1, in place; a judge that always says the same says nothing: 0."""
    count, silent = np.maximum(answers(logits), 1), np.flatnonzero(np.isnan(logits))
    logits.put(silent, 0)
    logits -= logits.sum(axis=0) / count
    logits.put(silent, 0)
    deviation = np.sqrt((logits**2).sum(axis=0) / count)
    logits /= np.where(deviation > TINY, deviation, 1.0)
    logits.put(silent, np.nan)
    return by_finding(logits)


def usual(p: Matrix) -> Matrix:
    """Average each finding's answers; NaN where there is none."""
    count = answers(p)
    total = p.sum(axis=0) if (count == len(p)).all() else np.nansum(p, axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def answers(p: Matrix) -> Ints:
    """Count each finding's answers."""
    silent = np.isnan(p)
    return len(p) - silent.sum(axis=0) if silent.any() else np.full(p.shape[1], len(p))


def by_finding(matrix: npt.NDArray[Value]) -> npt.NDArray[Value]:
    """Lay each finding's numbers one behind the other in memory, for whoever goes through them finding by finding."""
    laid = np.empty(matrix.shape, dtype=matrix.dtype, order="F")

    def lay(rows: slice) -> None:
        for column in range(matrix.shape[1]):
            laid[rows, column] = matrix[rows, column]

    in_blocks(len(matrix), lay)
    return laid


def in_blocks(images: int, work: Callable[[slice], None]) -> None:
    """Do the work on every block of the images, on all cores."""
    # In blocks, because fresh memory for a matrix of all pairs costs more than most of what is done in it.
    with ThreadPoolExecutor(pl.thread_pool_size()) as hands:
        list(hands.map(work, (slice(start, start + BLOCK) for start in range(0, images, BLOCK))))


def places_of(named: pl.Series, columns: npt.NDArray[Any], image_ids: pl.Series, findings: int) -> Place:
    """Find each row's place in a matrix of images and findings, counted row by row, or beyond it: no such image."""
    # Tables are written image by image: a run of one name is looked up once. Mostly they go through all images and
    # findings in the dataset's own order; then the place is all of the matrix.
    runs = named.rle().struct.unnest()
    length = runs["len"].to_numpy()
    if runs["value"].equals(image_ids):
        if (length == findings).all() and (columns.reshape(-1, findings) == np.arange(findings)).all():
            return slice(None)
        rows = np.arange(len(image_ids))
    else:
        known = pl.DataFrame({"value": image_ids}).with_row_index("row")
        found = runs.join(known, on="value", how="left", maintain_order="left")["row"]
        rows = found.cast(pl.Int64).fill_null(len(image_ids)).to_numpy()
    places = np.repeat(rows * findings, length)
    places += columns
    return places


def _places(what: str, table: pl.DataFrame, image_ids: pl.Series, findings: tuple[str, ...]) -> Place:
    """Find each row's place in a matrix of images and findings; refuse images and findings that are not there."""
    named = table["finding"]
    strange = 0
    if named.dtype != pl.Enum(findings):
        named = named.cast(pl.String)
        strange = int((~named.is_in(list(findings))).sum())
    columns = named.cast(pl.Enum(findings), strict=False).to_physical().fill_null(0).to_numpy()
    places = places_of(table["image_id"], columns, image_ids, len(findings))
    if not isinstance(places, slice) and (missing := int((absent := places >= len(image_ids) * len(findings)).sum())):
        first = table["image_id"].filter(absent)[0]
        raise ContractBroken(f"{missing:,} {what} are about films that are not in the dataset (first: {first})")
    if strange:
        first = named.filter(~named.is_in(list(findings)))[0]
        raise ContractBroken(f"{strange:,} {what} are about findings that are not audited (first: {first!r})")
    return places
