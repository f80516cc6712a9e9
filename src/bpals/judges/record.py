"""The record judge: answers each claim from the rest of the dataset's own record, never from the claim.

Cross-fitted by patient: the networks that answer for a patient were fitted on other patients only. So no claim can
reach the answer about itself, neither through the fit nor through the evidence; flipping it changes no bit of that
answer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl
from threadpoolctl import threadpool_limits

from bpals.errors import UsageError
from bpals.findings import Group, Vocabulary
from bpals.numeric import reports_of_films, sigmoid
from bpals.registry import JudgeKind
from bpals.types import KIND, OUTCOME, JudgeCard, judgments_schema

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

DECAYS = (0.5, 0.85)
"""How much less each further report of the patient weighs: one short memory, one long."""
NO_OTHER = -1.0
"""The value of a mean over no report at all."""
MOST_VIEWS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record as matrices: a row a film, a column a finding."""

    states: Floats
    """1 present, 0 absent, 0.5 uncertain, NaN silent."""
    patients: npt.NDArray[np.str_]
    others: Ints
    """How many other reports of the patient there are."""
    evidence: Floats
    """The features: a row a film."""


def read_record(images: pl.DataFrame, claims: pl.DataFrame, vocabulary: Vocabulary) -> Record:
    """Lay the record out as matrices."""
    states = state_matrix(images, claims, vocabulary)
    films = reports_of_films(images)
    order = _Order.of(films)
    evidence = np.concatenate([_history(states, images, order), _circumstances(images, order)], axis=1)
    return Record(
        states=states,
        patients=films["patient"].to_numpy().astype(np.str_),
        others=films["size"].to_numpy() - 1,
        evidence=evidence.astype(np.float32),
    )


def state_matrix(images: pl.DataFrame, claims: pl.DataFrame, vocabulary: Vocabulary) -> Floats:
    """Turn claims into a matrix: 1 present, 0 absent, 0.5 uncertain, NaN silent."""
    rows = images.select("image_id").with_row_index("row")
    placed = claims.join(rows, on="image_id", how="left", maintain_order="left")
    states = np.full((images.height, len(vocabulary.findings)), np.nan, dtype=np.float32)
    value = placed["says"].cast(pl.String).replace_strict({"present": 1.0, "absent": 0.0, "uncertain": 0.5})
    states[placed["row"].to_numpy(), placed["finding"].to_physical().to_numpy()] = value.to_numpy()
    return states


def fold_of(patients: npt.NDArray[np.str_], folds: int) -> Ints:
    """Give each film a fold by a hash of its patient's id alone."""
    names, place = np.unique(patients, return_inverse=True)
    fold = [int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % folds for name in names.tolist()]
    return np.asarray(fold, dtype=np.int64)[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The reports in the order of their patients and of time, as arrays: a row a report."""

    report_of_film: Ints
    rank: Ints
    """0 for the patient's first report."""
    size_of_patient: Ints
    follow_up: Floats

    @classmethod
    def of(cls, films: pl.DataFrame) -> _Order:
        reports = films.unique("report").sort("report")
        return cls(
            report_of_film=films["report"].to_numpy(),
            rank=reports["rank"].to_numpy(),
            size_of_patient=reports["size"].to_numpy(),
            follow_up=reports["follow_up"].cast(pl.Float32).fill_null(0.0).to_numpy(),
        )

    @property
    def ranks_left(self) -> Ints:
        return self.size_of_patient - 1 - self.rank

    def of_reports(self, films: Floats) -> Floats:
        """Average the films of each report."""
        count = np.bincount(self.report_of_film).astype(np.float32)
        total = np.zeros((len(count), films.shape[1]), dtype=np.float32)
        np.add.at(total, self.report_of_film, films)
        return total / count[:, None]


def _history(states: Floats, images: pl.DataFrame, order: _Order) -> Floats:
    """Summarise what the patient's other reports say, before and after, near and far."""
    channels = order.of_reports(_channels(states, images))
    columns = []
    for decay in DECAYS:
        columns += _decayed(channels, order.rank, decay)
        later = _decayed(channels[::-1], order.ranks_left[::-1], decay)
        columns += [column[::-1] for column in later]
    columns += _all_others(channels, order)
    return np.concatenate(columns, axis=1)[order.report_of_film]


def _channels(states: Floats, images: pl.DataFrame) -> Floats:
    """List what a report says to the others: each finding, silence where there is any, no finding, the view."""
    silent = np.isnan(states)
    said = np.where(silent, 0.0, states)
    nothing = (said.sum(axis=1, keepdims=True) == 0).astype(np.float32)
    columns = [said, silent[:, silent.any(axis=0)], nothing, _views(images)]
    return np.concatenate(columns, axis=1).astype(np.float32)


def _views(images: pl.DataFrame) -> Floats:
    """Mark the view, one column each; the most frequent is the ground and has none."""
    counted = images["view"].drop_nulls().value_counts().sort(["count", "view"], descending=[True, False])
    names = counted["view"].to_list()[1:MOST_VIEWS]
    marks = [(images["view"] == name).fill_null(value=False).to_numpy() for name in names]
    return np.stack(marks, axis=1).astype(np.float32) if marks else np.zeros((images.height, 0), np.float32)


def _decayed(channels: Floats, rank: Ints, decay: float) -> list[Floats]:
    """Average the earlier reports of the patient, each further one weighing `decay` times less; and say how many."""
    total = np.zeros_like(channels)
    weight = np.zeros(len(channels), dtype=np.float32)
    by_rank = np.argsort(rank, kind="stable")
    edges = np.searchsorted(rank[by_rank], np.arange(int(rank.max(initial=0)) + 2))
    for start, end in pairwise(edges[1:]):
        now = by_rank[start:end]
        total[now] = (total[now - 1] + channels[now - 1]) * decay
        weight[now] = (weight[now - 1] + 1) * decay
    mean = total / np.maximum(weight, 1e-6)[:, None]
    mean[weight == 0] = NO_OTHER
    return [mean, np.log1p(weight)[:, None]]


def _all_others(channels: Floats, order: _Order) -> list[Floats]:
    """Average all other reports of the patient alike, and count those that say each thing."""
    patient = np.cumsum(order.rank == 0) - 1
    total = np.zeros((int(patient[-1]) + 1 if len(patient) else 0, channels.shape[1]), dtype=np.float64)
    np.add.at(total, patient, channels)
    others = (order.size_of_patient - 1)[:, None]
    count = total[patient] - channels
    mean = np.where(others > 0, count / np.maximum(others, 1), NO_OTHER)
    return [mean.astype(np.float32), np.log1p(np.maximum(count, 0)).astype(np.float32)]


def _circumstances(images: pl.DataFrame, order: _Order) -> Floats:
    """List the film's own circumstances: age, sex, view, size, its place in the patient's follow-up."""
    columns = [_views(images)]
    for name in ("age", "width_px", "height_px"):
        known = images[name].is_not_null().to_numpy()
        value = images[name].cast(pl.Float32).fill_null(0.0).to_numpy()
        middle = value[known].mean() if known.any() else 0.0
        columns += [np.where(known, value, middle)[:, None], known[:, None]]
    sex = images["sex"].str.to_uppercase().str.slice(0, 1)
    columns += [(sex == letter).fill_null(value=False).to_numpy()[:, None] for letter in ("M", "F")]
    before, after = _gaps(order)
    place = np.stack([order.rank, order.ranks_left, order.size_of_patient, before, after], axis=1)
    columns.append(np.log1p(np.maximum(place, 0))[order.report_of_film])
    return np.concatenate(columns, axis=1).astype(np.float32)


def _gaps(order: _Order) -> tuple[Floats, Floats]:
    """Measure how far the previous and the next report are, in the dataset's own unit of follow-up."""
    step = np.diff(order.follow_up, prepend=np.float32(0))
    before = np.where(order.rank == 0, 0, step)
    after = np.where(order.ranks_left == 0, 0, np.append(step[1:], np.float32(0)))
    return before.astype(np.float32), after.astype(np.float32)


SMALLEST_BATCH = 32
FARTHEST = 8.0
"""Evidence this many standard deviations from its mean speaks no louder: a view seen twice must not drown the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a network is fitted. Chosen by error detection on validation images; LOG.md has the variants."""

    hidden: tuple[int, int] = (64, 32)
    epochs: int = 6
    batch: int = 1024
    steps: int = 400
    """At least this many: a small record is cut into smaller batches, then read in more epochs."""
    rate: float = 3e-3
    decay: float = 1e-4
    dropout: float = 0.1
    colabel_penalty: float = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class Films:
    """Films as a network reads them: a row a film, a column a finding or a feature."""

    evidence: Floats
    states: Floats
    """1 present, 0 absent, 0.5 uncertain, NaN silent."""
    single: npt.NDArray[np.bool_]
    """The patient has no other report: only here do the film's other claims speak."""

    def __len__(self) -> int:
        """Count the films."""
        return len(self.states)

    def __getitem__(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Films:
        """Take some of the films."""
        return Films(evidence=self.evidence[rows], states=self.states[rows], single=self.single[rows])

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Mark the pairs that are claimed present or absent."""
        return np.asarray((self.states == 0) | (self.states == 1))

    @property
    def said(self) -> Floats:
        """The states with silence as nothing said."""
        return np.nan_to_num(self.states)


@dataclass(slots=True)
class Network:
    """The weights of one fitted network."""

    centre: Floats
    scale: Floats
    layers: list[Floats]
    offsets: list[Floats]
    colabels: Floats
    alone: Floats

    def logits(self, films: Films) -> npt.NDArray[np.float64]:
        """Answer for every film and finding; a claim speaks only to the other findings."""
        hidden = self.scaled(films.evidence)
        for layer, offset in zip(self.layers[:-1], self.offsets[:-1], strict=True):
            hidden = np.maximum(hidden @ layer + offset, 0)
        logits = hidden @ self.layers[-1] + self.offsets[-1]
        said = films.said
        logits[films.single] += said[films.single] @ self.colabels + _nothing_else(said[films.single]) * self.alone
        return logits.astype(np.float64)

    def scaled(self, evidence: Floats) -> Floats:
        """Give each feature mean 0 and deviation 1 among the films of the fit; what never varied there is silent."""
        return np.asarray(np.clip((evidence - self.centre) / self.scale, -FARTHEST, FARTHEST), dtype=np.float32)


def fit(films: Films, weights: Floats, training: Training, seed: int) -> Network:
    """Fit one network on the presences and absences, a weight a film; uncertain and silent pairs say nothing."""
    draw = np.random.default_rng(seed)
    network = _start(films, training, draw)
    scaled = replace(films, evidence=network.scaled(films.evidence))
    size, epochs = _schedule(len(films), training)
    step = _adam(network, training, total=epochs * (len(films) // size))
    for _ in range(epochs):
        shuffled = draw.permutation(len(films))
        for start in range(0, len(films) - size + 1, size):
            rows = shuffled[start : start + size]
            step(_gradients(network, scaled[rows], weights[rows], training, draw))
    return network


def _schedule(films: int, training: Training) -> tuple[int, int]:
    """Choose the size of a batch and the epochs: a small record too is learned from in enough steps."""
    size = min(training.batch, max(SMALLEST_BATCH, films * training.epochs // training.steps), films)
    return size, max(training.epochs, math.ceil(training.steps / (films // size)))


def _start(films: Films, training: Training, draw: np.random.Generator) -> Network:
    """Begin at each finding's prevalence with small random layers."""
    varies = np.ptp(films.evidence, axis=0) > 0
    rate = ((films.states == 1).sum(axis=0) + 0.5) / (films.known.sum(axis=0) + 1)
    findings = films.states.shape[1]
    widths = [films.evidence.shape[1], *training.hidden, findings]
    layers = [(draw.standard_normal(pair) * np.sqrt(2 / pair[0])).astype(np.float32) for pair in pairwise(widths)]
    layers[-1] *= np.float32(0.1)
    offsets = [np.zeros(width, dtype=np.float32) for width in widths[1:]]
    offsets[-1] = np.log(rate / (1 - rate)).astype(np.float32)
    return Network(
        centre=films.evidence.mean(axis=0),
        scale=np.where(varies, films.evidence.std(axis=0), np.inf).astype(np.float32),
        layers=layers,
        offsets=offsets,
        colabels=np.zeros((findings, findings), dtype=np.float32),
        alone=np.zeros(findings, dtype=np.float32),
    )


def _nothing_else(said: Floats) -> Floats:
    """Mark the findings beside which nothing else is claimed on the film."""
    return np.asarray((said.sum(axis=1, keepdims=True) - said) == 0, dtype=np.float32)


def _gradients(
    network: Network, films: Films, weights: Floats, training: Training, draw: np.random.Generator
) -> list[Floats]:
    """Differentiate the weighted log-loss of one batch, in the order of `_parameters`."""
    active, kept = _forward(network, films.evidence, training, draw)
    logits = active[-1] @ network.layers[-1] + network.offsets[-1]
    single, said = films.single, films.said
    said_alone = said[single]
    nothing_else = _nothing_else(said_alone)
    logits[single] += said_alone @ network.colabels + nothing_else * network.alone
    share = np.asarray(weights[:, None] / len(films), dtype=np.float32)
    error = np.where(films.known, sigmoid(logits) - said, 0).astype(np.float32) * share
    colabels = said_alone.T @ error[single]
    np.fill_diagonal(colabels, 0)
    penalty = np.float32(training.colabel_penalty)
    alone = (nothing_else * error[single]).sum(axis=0) + penalty * network.alone
    layers: list[Floats] = []
    offsets: list[Floats] = []
    for depth in range(len(network.layers) - 1, -1, -1):
        layers.insert(0, active[depth].T @ error)
        offsets.insert(0, error.sum(axis=0))
        if depth:
            error = (error @ network.layers[depth].T) * (active[depth] > 0) * kept[depth - 1]
    return [*layers, *offsets, colabels + penalty * network.colabels, alone]


def _forward(
    network: Network, inputs: Floats, training: Training, draw: np.random.Generator
) -> tuple[list[Floats], list[Floats]]:
    """Run the hidden layers with dropout: what each layer was given, and what was kept."""
    active, kept = [inputs], []
    for layer, offset in zip(network.layers[:-1], network.offsets[:-1], strict=True):
        hidden = np.maximum(active[-1] @ layer + offset, 0)
        keep = (draw.random(hidden.shape, dtype=np.float32) > training.dropout) / np.float32(1 - training.dropout)
        active.append(hidden * keep)
        kept.append(keep)
    return active, kept


def _parameters(network: Network) -> list[Floats]:
    return [*network.layers, *network.offsets, network.colabels, network.alone]


def _adam(network: Network, training: Training, *, total: int) -> Callable[[list[Floats]], None]:
    """Make the function that moves every parameter by one step: Adam, a short warm-up, then a cosine to nothing."""
    parameters = _parameters(network)
    first = [np.zeros_like(parameter) for parameter in parameters]
    second = [np.zeros_like(parameter) for parameter in parameters]
    taken = 0

    def step(gradients: list[Floats]) -> None:
        nonlocal taken
        taken += 1
        rate = training.rate * min(1, taken / 50) * 0.5 * (1 + np.cos(np.pi * min(1.0, taken / total)))
        for index, gradient in enumerate(gradients):
            first[index] += 0.1 * (gradient - first[index])
            second[index] += 0.001 * (gradient**2 - second[index])
            move = (first[index] / (1 - 0.9**taken)) / (np.sqrt(second[index] / (1 - 0.999**taken)) + 1e-8)
            parameters[index] -= (rate * move).astype(np.float32)
        for layer in network.layers:
            np.multiply(layer, np.float32(1 - rate * training.decay / training.rate), out=layer)

    return step


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
    training: Training = field(default_factory=Training)

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
        record: Record | None = None,
    ) -> pl.DataFrame:
        """Answer for every claim (or for those of some folds), as JUDGMENTS in the order of the claims.

        `record` is `timeline.read_record` of the same tables, where somebody has read it already.
        """
        record = record or read_record(images, claims, vocabulary)
        films = Films(evidence=record.evidence, states=record.states, single=record.others == 0)
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
        record: Record | None = None,
    ) -> pl.DataFrame:
        """Answer for groups as for findings of their own: one row a film and group, as JUDGMENTS.

        No claim of the film is heard here, because a member's claim gives away the group's.
        """
        record = record or read_record(images, claims, vocabulary)
        members = [[vocabulary.findings.index(name) for name in group.members] for group in groups]
        said = [group.claim(record.states[:, its])[:, None] for group, its in zip(groups, members, strict=True)]
        states = np.concatenate([record.states, *said], axis=1)
        nobody = np.zeros(len(states), dtype=bool)
        films = Films(evidence=record.evidence, states=states, single=nobody)
        p_present, asked = self._cross_fit(films, record.patients, None, progress)
        named = Vocabulary(name="groups", findings=tuple(group.name for group in groups))
        pairs = images.select("image_id").join(
            pl.DataFrame({"finding": pl.Series(named.findings, dtype=named.enum)}), how="cross"
        )
        return self._judgments(images, pairs, named, p_present[:, :, -len(groups) :], asked)

    def _cross_fit(
        self,
        films: Films,
        patients: npt.NDArray[np.str_],
        only_folds: Sequence[int] | None,
        progress: Progress | None,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Answer for each fold of patients from the others: probability, low and high; and which films were asked."""
        fold = fold_of(patients, self.folds)
        asked = list(range(self.folds)) if only_folds is None else list(only_folds)
        p_present = np.full((3, *films.states.shape), np.nan)
        for done, number in enumerate(asked):
            if progress:
                progress(done / len(asked))
            here = fold == number
            if here.any() and not here.all():
                p_present[:, here] = self._answer(films[~here], patients[~here], films[here])
        return p_present, np.isin(fold, asked)

    def _answer(self, others: Films, patients: npt.NDArray[np.str_], here: Films) -> npt.NDArray[np.float64]:
        """Fit on some patients and answer for others; NaN where there is nothing to go by."""
        _, patient = np.unique(patients, return_inverse=True)
        logits = []
        with threadpool_limits(1):
            for member in range(self.networks):
                seed = self.seed + member
                drawn = np.random.default_rng([seed, 1]).exponential(size=int(patient.max()) + 1)
                fitted = fit(others, drawn[patient].astype(np.float32), self.training, seed)
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
    middle = sigmoid(logits).mean(axis=0)
    spread = logits.std(axis=0, ddof=1) if len(logits) > 1 else np.zeros_like(middle)
    reach = STUDENT_T.get(len(logits), 1.96) * spread
    centre = logits.mean(axis=0)
    low = np.minimum(sigmoid(centre - reach), middle)
    high = np.maximum(sigmoid(centre + reach), middle)
    return np.round(np.stack([middle, low, high]), DECIMALS)


def open_record(target: str = "", revision: str = "") -> RecordJudge:
    """Give the metadata judge; it has no target."""
    if target or revision:
        raise UsageError(f"record:{target} names a judge that reads the dataset's own table. Type: record")
    return RecordJudge()


JUDGE = JudgeKind(
    name="record",
    form="record",
    summary="the metadata judge reads the rest of the dataset's own table: the patient's other images, the view, the "
    "age; bpals audit runs it",
    open=open_record,
    runs="audit",
    takes=(),
    page="judges.md",
)
