"""`record`, the metadata judge: it reads the rest of the dataset's own table, never the label that it judges.

The rest is the patient's other images, the view, the age. Cross-fitted by patient: the networks that answer for a
patient were fitted on other patients only. So no label can reach the answer about itself, neither through the fit nor
through the evidence; flipping it changes no bit of that answer.
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
from bpals.types import KIND, OUTCOME, JudgeCard

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Names = npt.NDArray[np.str_]
Ints = npt.NDArray[np.int64]

# How much less each further report of the patient weighs: one short memory, one long.
DECAYS = (0.5, 0.85)
# The value of a mean over no report at all.
NO_OTHER = -1.0
MOST_VIEWS = 6
SMALLEST_BATCH = 32
# Evidence is clipped this many standard deviations from its mean: a view that occurs twice must not drown the rest.
FARTHEST = 8.0
VERSION = "1"
DECIMALS = 6
# 97.5 % point of Student's t for the spread of that many networks.
STUDENT_T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}

# Called with the share of the work that is done.
Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a network is fitted. Chosen by error detection on validation images; LOG.md has the variants."""

    hidden: tuple[int, int] = (64, 32)
    epochs: int = 6
    batch: int = 1024
    steps: int = 400
    """At least this many: a small dataset is cut into smaller batches, then read in more epochs."""
    rate: float = 3e-3
    decay: float = 1e-4
    dropout: float = 0.1
    colabel_penalty: float = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordJudge:
    """Answers for every label from the rest of the table."""

    folds: int = 5
    networks: int = 8
    """Networks per fold, each fitted on the patients under other random weights: their spread is the interval."""
    seed: int = 20171
    training: Training = field(default_factory=Training)

    name = "record"

    @property
    def card(self) -> JudgeCard:
        """The judge's card."""
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
        """Answer for every label (or for those of some folds), as JUDGMENTS in the order of the labels.

        `record` is `read_record` of the same tables, where the caller has it already.
        """
        record = record or read_record(images, claims, vocabulary)
        films = Films(features=record.features, states=record.states, single=record.others == 0)
        p_present, answered = self._cross_fit(films, record.patients, only_folds, progress)
        return self._judgments(images, claims, p_present, answered)

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
        """Answer for groups as for findings of their own: one row per image and group, as JUDGMENTS.

        No label of the image itself is used here, because a member's label gives away the group's.
        """
        record = record or read_record(images, claims, vocabulary)
        members = [[vocabulary.findings.index(name) for name in group.members] for group in groups]
        labels = [group.claim(record.states[:, its])[:, None] for group, its in zip(groups, members, strict=True)]
        states = np.concatenate([record.states, *labels], axis=1)
        films = Films(features=record.features, states=states, single=np.zeros(len(states), dtype=bool))
        p_present, answered = self._cross_fit(films, record.patients, None, progress)
        names = [group.name for group in groups]
        pairs = images.select("image_id").join(
            pl.DataFrame({"finding": pl.Series(names, dtype=pl.Enum(names))}), how="cross"
        )
        return self._judgments(images, pairs, p_present[:, :, -len(groups) :], answered)

    def _cross_fit(
        self, films: Films, patients: Names, only_folds: Sequence[int] | None, progress: Progress | None
    ) -> tuple[Doubles, Bools]:
        """Answer for each fold of patients from the others: probability, low and high; and for which images."""
        fold = fold_of(patients, self.folds)
        wanted = list(range(self.folds)) if only_folds is None else list(only_folds)
        p_present = np.full((3, *films.states.shape), np.nan)
        for done, number in enumerate(wanted):
            if progress:
                progress(done / len(wanted))
            here = fold == number
            if here.any() and not here.all():
                p_present[:, here] = self._answer(films[~here], patients[~here], films[here])
        return p_present, np.isin(fold, wanted)

    def _answer(self, others: Films, patients: Names, here: Films) -> Doubles:
        """Fit on some patients and answer for others; NaN for a finding without any label to fit on."""
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
        self, images: pl.DataFrame, claims: pl.DataFrame, p_present: Doubles, answered: Bools
    ) -> pl.DataFrame:
        """Lay the answers beside the labels, as judgments_schema has them."""
        rows = images.select("image_id").with_columns(answered=pl.Series(answered)).with_row_index("row")
        placed = claims.join(rows, on="image_id", how="left", maintain_order="left").filter("answered")
        row, column = placed["row"].to_numpy(), placed["finding"].to_physical().to_numpy()
        middle, low, high = (pl.Series(side[row, column]).fill_nan(None) for side in p_present)
        outcome = middle.is_not_null().replace_strict({True: "answered", False: "abstained"}, return_dtype=OUTCOME)
        return placed.select(
            "image_id",
            "finding",
            judge=pl.lit(self.name),
            kind=pl.lit("record", dtype=KIND),
            outcome=outcome,
            p_present=middle,
            p_low=low,
            p_high=high,
        )


def _middle_and_interval(logits: Doubles) -> Doubles:
    """Average the networks' probabilities; the interval comes from the spread of their logits."""
    middle = sigmoid(logits).mean(axis=0)
    spread = logits.std(axis=0, ddof=1) if len(logits) > 1 else np.zeros_like(middle)
    reach = STUDENT_T.get(len(logits), 1.96) * spread
    centre = logits.mean(axis=0)
    low = np.minimum(sigmoid(centre - reach), middle)
    high = np.maximum(sigmoid(centre + reach), middle)
    return np.round(np.stack([middle, low, high]), DECIMALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The dataset's own table as matrices: one row per image, one column per finding."""

    states: Floats
    """1 present, 0 absent, 0.5 uncertain, NaN without a label."""
    patients: Names
    others: Ints
    """How many other reports of the patient there are."""
    features: Floats
    """What the judge reads about each image: one row per image."""


def read_record(images: pl.DataFrame, claims: pl.DataFrame, vocabulary: Vocabulary) -> Record:
    """Lay the dataset's own table out as matrices."""
    states = state_matrix(images, claims, vocabulary)
    films = reports_of_films(images)
    reports = films.unique("report").sort("report")
    order = _Order(
        report_of_film=films["report"].to_numpy(),
        rank=reports["rank"].to_numpy(),
        size_of_patient=reports["size"].to_numpy(),
        follow_up=reports["follow_up"].cast(pl.Float32).fill_null(0.0).to_numpy(),
    )
    features = np.concatenate([_history(states, images, order), _circumstances(images, order)], axis=1)
    return Record(
        states=states,
        patients=films["patient"].to_numpy().astype(np.str_),
        others=films["size"].to_numpy() - 1,
        features=features.astype(np.float32),
    )


def state_matrix(images: pl.DataFrame, claims: pl.DataFrame, vocabulary: Vocabulary) -> Floats:
    """Turn labels into a matrix: 1 present, 0 absent, 0.5 uncertain, NaN without a label."""
    rows = images.select("image_id").with_row_index("row")
    placed = claims.join(rows, on="image_id", how="left", maintain_order="left")
    states = np.full((images.height, len(vocabulary.findings)), np.nan, dtype=np.float32)
    value = placed["says"].cast(pl.String).replace_strict({"present": 1.0, "absent": 0.0, "uncertain": 0.5})
    states[placed["row"].to_numpy(), placed["finding"].to_physical().to_numpy()] = value.to_numpy()
    return states


def fold_of(patients: Names, folds: int) -> Ints:
    """Give each image a fold by a hash of its patient's id alone."""
    names, place = np.unique(patients, return_inverse=True)
    fold = [int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % folds for name in names.tolist()]
    return np.asarray(fold, dtype=np.int64)[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The reports in the order of their patients and of time, as arrays: one row per report."""

    report_of_film: Ints
    rank: Ints
    """0 for the patient's first report."""
    size_of_patient: Ints
    follow_up: Floats

    @property
    def ranks_left(self) -> Ints:
        return self.size_of_patient - 1 - self.rank


def _history(states: Floats, images: pl.DataFrame, order: _Order) -> Floats:
    """Summarise the patient's other reports, before and after, near and far."""
    missing = np.isnan(states)
    known = np.where(missing, 0.0, states)
    nothing = (known.sum(axis=1, keepdims=True) == 0).astype(np.float32)
    # What a report tells about the others: each finding, a missing label, no finding at all, the view.
    parts = [known, missing[:, missing.any(axis=0)], nothing, _views(images)]
    films = np.concatenate(parts, axis=1).astype(np.float32)
    count = np.bincount(order.report_of_film).astype(np.float32)
    channels = np.zeros((len(count), films.shape[1]), dtype=np.float32)
    np.add.at(channels, order.report_of_film, films)
    channels = channels / count[:, None]  # the mean over the images of a report
    columns: list[Floats] = []
    for decay in DECAYS:
        columns += _decayed(channels, order.rank, decay)
        later = _decayed(channels[::-1], order.ranks_left[::-1], decay)
        columns += [column[::-1] for column in later]
    columns += _all_others(channels, order)
    return np.concatenate(columns, axis=1)[order.report_of_film]


def _views(images: pl.DataFrame) -> Floats:
    """Mark the view, one column each; the most frequent has none: all others are zero there."""
    counted = images["view"].drop_nulls().value_counts().sort(["count", "view"], descending=[True, False])
    names = counted["view"].to_list()[1:MOST_VIEWS]
    marks = [(images["view"] == name).fill_null(value=False).to_numpy() for name in names]
    return np.stack(marks, axis=1).astype(np.float32) if marks else np.zeros((images.height, 0), np.float32)


def _decayed(channels: Floats, rank: Ints, decay: float) -> list[Floats]:
    """Average the earlier reports of the patient, each further one weighing `decay` times less; and count them."""
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
    """Average all other reports of the patient alike, and count those with each finding."""
    patient = np.cumsum(order.rank == 0) - 1
    total = np.zeros((int(patient[-1]) + 1 if len(patient) else 0, channels.shape[1]), dtype=np.float64)
    np.add.at(total, patient, channels)
    others = (order.size_of_patient - 1)[:, None]
    count = total[patient] - channels
    mean = np.where(others > 0, count / np.maximum(others, 1), NO_OTHER)
    return [mean.astype(np.float32), np.log1p(np.maximum(count, 0)).astype(np.float32)]


def _circumstances(images: pl.DataFrame, order: _Order) -> Floats:
    """List the image's own circumstances: age, sex, view, size, its place in the patient's follow-up."""
    columns = [_views(images)]
    for name in ("age", "width_px", "height_px"):
        known = images[name].is_not_null().to_numpy()
        value = images[name].cast(pl.Float32).fill_null(0.0).to_numpy()
        middle = value[known].mean() if known.any() else 0.0
        columns += [np.where(known, value, middle)[:, None], known[:, None]]
    sex = images["sex"].str.to_uppercase().str.slice(0, 1)
    columns += [(sex == letter).fill_null(value=False).to_numpy()[:, None] for letter in ("M", "F")]
    # How far the previous and the next report are, in the dataset's own unit of follow-up.
    step = np.diff(order.follow_up, prepend=np.float32(0))
    before = np.where(order.rank == 0, 0, step).astype(np.float32)
    after = np.where(order.ranks_left == 0, 0, np.append(step[1:], np.float32(0))).astype(np.float32)
    place = np.stack([order.rank, order.ranks_left, order.size_of_patient, before, after], axis=1)
    columns.append(np.log1p(np.maximum(place, 0))[order.report_of_film])
    return np.concatenate(columns, axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Films:
    """Images as a network reads them: one row per image, one column per finding or feature."""

    features: Floats
    states: Floats
    """1 present, 0 absent, 0.5 uncertain, NaN without a label."""
    single: Bools
    """The patient has no other report: only then are the image's other labels used."""

    def __len__(self) -> int:
        """Count the images."""
        return len(self.states)

    def __getitem__(self, rows: Ints | Bools) -> Films:
        """Take some of the images."""
        return Films(features=self.features[rows], states=self.states[rows], single=self.single[rows])

    @property
    def known(self) -> Bools:
        """Mark the pairs that are labelled present or absent."""
        return np.asarray((self.states == 0) | (self.states == 1))

    @property
    def labels(self) -> Floats:
        """The states with a missing label as absent."""
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

    def logits(self, films: Films) -> Doubles:
        """Answer for every image and finding; a label is evidence only for the other findings."""
        hidden = self.scaled(films.features)
        for layer, offset in zip(self.layers[:-1], self.offsets[:-1], strict=True):
            hidden = np.maximum(hidden @ layer + offset, 0)
        logits = hidden @ self.layers[-1] + self.offsets[-1]
        labels = films.labels[films.single]
        logits[films.single] += labels @ self.colabels + _nothing_else(labels) * self.alone
        return logits.astype(np.float64)

    def scaled(self, features: Floats) -> Floats:
        """Give each feature mean 0 and deviation 1 among the images of the fit; one that never varied there is 0."""
        return np.asarray(np.clip((features - self.centre) / self.scale, -FARTHEST, FARTHEST), dtype=np.float32)


def fit(films: Films, weights: Floats, training: Training, seed: int) -> Network:
    """Fit one network on the labels present and absent, with one weight per image; other pairs are not used."""
    draw = np.random.default_rng(seed)
    network = _start(films, training, draw)
    scaled = replace(films, features=network.scaled(films.features))
    size, epochs = _schedule(len(films), training)
    step = _adam(network, training, total=epochs * (len(films) // size))
    for _ in range(epochs):
        shuffled = draw.permutation(len(films))
        for start in range(0, len(films) - size + 1, size):
            rows = shuffled[start : start + size]
            step(_gradients(network, scaled[rows], weights[rows], training, draw))
    return network


def _schedule(films: int, training: Training) -> tuple[int, int]:
    """Choose the size of a batch and the epochs: a small dataset too gets enough steps."""
    size = min(training.batch, max(SMALLEST_BATCH, films * training.epochs // training.steps), films)
    return size, max(training.epochs, math.ceil(training.steps / (films // size)))


def _start(films: Films, training: Training, draw: np.random.Generator) -> Network:
    """Begin at each finding's prevalence with small random layers."""
    varies = np.ptp(films.features, axis=0) > 0
    rate = ((films.states == 1).sum(axis=0) + 0.5) / (films.known.sum(axis=0) + 1)
    findings = films.states.shape[1]
    widths = [films.features.shape[1], *training.hidden, findings]
    layers = [(draw.standard_normal(pair) * np.sqrt(2 / pair[0])).astype(np.float32) for pair in pairwise(widths)]
    layers[-1] *= np.float32(0.1)
    offsets = [np.zeros(width, dtype=np.float32) for width in widths[1:]]
    offsets[-1] = np.log(rate / (1 - rate)).astype(np.float32)
    return Network(
        centre=films.features.mean(axis=0),
        scale=np.where(varies, films.features.std(axis=0), np.inf).astype(np.float32),
        layers=layers,
        offsets=offsets,
        colabels=np.zeros((findings, findings), dtype=np.float32),
        alone=np.zeros(findings, dtype=np.float32),
    )


def _nothing_else(labels: Floats) -> Floats:
    """Mark the findings beside which the image has no other label."""
    return np.asarray((labels.sum(axis=1, keepdims=True) - labels) == 0, dtype=np.float32)


def _gradients(
    network: Network, films: Films, weights: Floats, training: Training, draw: np.random.Generator
) -> list[Floats]:
    """Differentiate the weighted log-loss of one batch, in the order of `_parameters`."""
    active, kept = _forward(network, films.features, training, draw)
    logits = active[-1] @ network.layers[-1] + network.offsets[-1]
    single, labels = films.single, films.labels
    own = labels[single]
    nothing_else = _nothing_else(own)
    logits[single] += own @ network.colabels + nothing_else * network.alone
    share = np.asarray(weights[:, None] / len(films), dtype=np.float32)
    error = np.where(films.known, sigmoid(logits) - labels, 0).astype(np.float32) * share
    colabels = own.T @ error[single]
    np.fill_diagonal(colabels, 0)  # a label must not reach the answer about itself
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
    """Run the hidden layers with dropout: the input of each layer, and what dropout kept."""
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
