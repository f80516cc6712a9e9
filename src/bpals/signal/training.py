"""What an audit gives a model: soft targets, labels with the doubtful ones left open, weights, and a dataset of them.

targets(signal)                 a verdict where people gave one, else p_present, else NaN: train on these
mask(signal)                    1, 0, or NaN where the label is doubtful, with the class balance of the labels
weights(signal)                 a weight per label, with the class balance of the labels
with_targets(dataset, targets)  a TorchXRayVision dataset whose items carry the targets
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bpals.errors import MissingExtra, UnknownName, UsageError, install_line
from bpals.findings import fold
from bpals.types import FLAG

DISTRUSTED = ("rejected", "likely_mislabelled", "suspect")
SETTLED = ("confirmed", "rejected")
CAP = 0.2
"""The share of the labels of one finding and direction that may be lost where the balance is kept."""
CLASS = ["finding", "says"]
CERTAIN = ["present", "absent"]
NOBODY = float("nan")

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Labels:
    """One row per image, one column per finding, in TorchXRayVision's convention: 1, 0, or NaN for no information."""

    image_ids: list[str]
    findings: list[str]
    values: Values
    report: pl.DataFrame
    """What `summary` gives."""

    def summary(self) -> pl.DataFrame:
        """Say what was done: one row per finding and kind of label."""
        return self.report

    def to_polars(self) -> pl.DataFrame:
        """Give a frame: `image_id`, then one column per finding, null where nobody knows."""
        columns = pl.DataFrame(self.values, schema=dict.fromkeys(self.findings, pl.Float32), orient="row")
        ids = pl.Series("image_id", self.image_ids, dtype=pl.String)
        return columns.fill_nan(None).insert_column(0, ids)

    def to_pandas(self) -> Any:
        """Give a pandas frame with the image ids as its index, NaN where nobody knows."""
        if any(find_spec(package) is None for package in ("pandas", "pyarrow")):
            raise UsageError(f"to_pandas() needs pandas and pyarrow. Type: {install_line(package='pandas pyarrow')}")
        return self.to_polars().to_pandas().set_index("image_id")

    def to_torch(self) -> Any:
        """Give a float32 tensor, NaN where nobody knows."""
        if find_spec("torch") is None:
            raise MissingExtra.of("to_torch()", "torch")
        import torch

        # Copied: a tensor that shares memory would change the values of this object.
        return torch.tensor(self.values)

    def __repr__(self) -> str:
        known = self.report["labels"].sum()
        return f"<Labels of {self._size()}: {_share(self.report['open'].sum(), known)} of {known:,} left open>"

    def _size(self) -> str:
        return f"{len(self.image_ids):,} images x {len(self.findings)} findings"


class Targets(Labels):
    """Soft targets per image and finding: 1 or 0 by a verdict, else a probability, else NaN."""

    __slots__ = ()

    def __repr__(self) -> str:
        pairs = self.values.size
        shares = [f"{_share(self.report[name].sum(), pairs)} {name}" for name in ("verdicts", "estimates", "missing")]
        return f"<Targets of {self._size()}: {', '.join(shares)}>"


class Weights(pl.DataFrame):
    """A Polars frame of weights that also says how they were made."""

    _report: pl.DataFrame | None = None

    def summary(self) -> pl.DataFrame:
        """Say what was done: one row per finding and kind of label."""
        if self._report is None:
            raise UsageError("this is a part of the weights, without a summary. Call summary() on what weights() gave")
        return self._report

    def __repr__(self) -> str:
        # A slice of a frame has the class of the frame, and no report.
        if self._report is None:
            return super().__repr__()
        labels = float(self._report["labels"].sum())
        share = _share(labels - float(self._report["effective"].sum()), labels)
        return f"<Weights of {self.height:,} images x {self.width - 1} findings: they cost {share} of the labels>"


def targets(signal: pl.DataFrame, *, pathologies: Sequence[str] | None = None) -> Targets:
    """Give soft targets: 1 or 0 where readers gave a verdict, else `p_present`, NaN where nobody knows.

    A verdict counts where an adjudicator or a majority gave it, whatever the label says. `pathologies` picks and
    orders the columns; a finding that the signal does not have is all NaN.
    """
    grid = _Grid.of(signal, "targets", ("says", "p_present"), pathologies)
    verdict = _verdict(signal)
    told = pl.when(verdict == "present").then(1.0).when(verdict == "absent").then(0.0)
    made = signal.select(
        "finding",
        told=told,
        target=pl.coalesce(told, "p_present"),
        claimed=pl.col("says") == "present",
    )
    wrong = made.filter(~pl.col("target").is_between(0, 1))
    if wrong.height:
        raise UsageError(
            f"targets(signal): p_present is {wrong['target'][0]}, no probability. Load it again: bpals.load_signal"
        )
    counts = made.group_by("finding").agg(
        verdicts=pl.col("told").count(),
        estimates=pl.col("target").count() - pl.col("told").count(),
        labelled_present=pl.col("claimed").sum(),
        expected_present=pl.col("target").sum(),
    )
    report = grid.by_finding(counts).with_columns(pl.exclude("finding").fill_null(0))
    known = pl.col("verdicts") + pl.col("estimates")
    report = report.select("finding", "verdicts", "estimates", (len(grid.image_ids) - known).alias("missing"),
                           "labelled_present", "expected_present")  # fmt: skip
    values = grid.fill(made["target"], NOBODY).astype(np.float32)
    return Targets(image_ids=grid.image_ids, findings=grid.findings, values=values, report=report)


def mask(
    signal: pl.DataFrame,
    *,
    flags: Sequence[str] = DISTRUSTED,
    pathologies: Sequence[str] | None = None,
    balance: bool = True,
    cap: float | None = None,
) -> Labels:
    """Give the labels with the doubtful ones open: NaN where the flag is one of `flags`, or there is no label.

    Both classes of a finding lose the same share, the least trusted labels first, so that negatives per positive
    stay as they are; `cap` is the largest share (.2). Labels that people read do not count in it: `rejected` is
    open, whatever `flags` are, and `confirmed` stays. `balance=False` opens every flagged label and no other.
    `pathologies` picks and orders the columns; a finding that the signal does not have is all NaN, as in
    TorchXRayVision's `relabel_dataset`. Case, blanks and underscores do not matter: `Pleural Thickening` is
    `Pleural_Thickening`.
    """
    known = list(dict.fromkeys([*FLAG.categories, *SETTLED]))
    for flag in flags:
        if flag not in known:
            raise UnknownName.of("flag", flag, known, where="mask(flags=...)")
    share = _cap(cap, "mask", balance=balance)
    grid = _Grid.of(signal, "mask", ("says", "trust", "flag"), pathologies)
    doubted = pl.col("flag").cast(pl.String).is_in([flag for flag in flags if flag not in SETTLED])
    table = signal.select(
        "finding",
        "says",
        label=pl.when(pl.col("says") == "present").then(1.0).when(pl.col("says") == "absent").then(0.0),
        settled=_settled(signal),
        doubted=doubted,
        trust="trust",
    )
    table = table.with_columns(doubted=pl.col("doubted") & pl.col("settled").is_null())
    # A label that is known to be wrong is open whichever flags are named.
    settled_open = pl.col("settled").is_in(["rejected", *(flag for flag in flags if flag in SETTLED)])
    settled_open = settled_open.fill_null(value=False)
    dropped = pl.col("doubted") if share is None else _least_trusted(share, balance=balance)
    table = table.with_columns(open=pl.col("label").is_not_null() & (settled_open | dropped))
    values = grid.fill(table.select(pl.when(~pl.col("open")).then("label")).to_series(), NOBODY).astype(np.float32)
    report = _mask_report(table, grid)
    return Labels(image_ids=grid.image_ids, findings=grid.findings, values=values, report=report)


def _least_trusted(cap: float, *, balance: bool) -> pl.Expr:
    """Say which labels go: of each finding and direction the share that is doubted, at most `cap`."""
    pool = pl.col("settled").is_null() & pl.col("label").is_not_null()
    size, doubted = pool.sum().over(CLASS), (pool & pl.col("doubted")).sum().over(CLASS)
    share = pl.min_horizontal(doubted / size, pl.lit(cap))
    if balance:
        # One share for both classes. The class with fewer doubted labels gives its least trusted ones besides.
        share = pl.when(pool).then(share).max().over("finding")
    # Doubted labels first, then by trust, those without one last; ties in the order of the table.
    key = pl.col("trust").fill_null(2.0) + pl.when(pl.col("doubted")).then(0.0).otherwise(4.0)
    place = pl.when(pool).then(key).rank("ordinal").over(CLASS)
    # A share of .2 of 5 labels is 1, though .2 * 5 may be a bit less in floating point.
    return (place <= (share * size + 1e-9).floor()).fill_null(value=False)


def _mask_report(table: pl.DataFrame, grid: _Grid) -> pl.DataFrame:
    certain = table.filter(pl.col("label").is_not_null())
    counts = certain.group_by(CLASS).agg(
        labels=pl.len(),
        rejected=(pl.col("settled") == "rejected").sum(),
        flagged=pl.col("doubted").sum(),
        kept_by_cap=(pl.col("doubted") & ~pl.col("open")).sum(),
        open_for_balance=(pl.col("open") & ~pl.col("doubted") & pl.col("settled").is_null()).sum(),
        open=pl.col("open").sum(),
    )
    return _with_ratios(grid.by_class(counts), "labels", pl.col("labels") - pl.col("open"))


def weights(
    signal: pl.DataFrame, *, floor: float = 0.0, balance: bool = True, cap: float | None = None
) -> pl.DataFrame:
    """Give a weight per label: one row per image, one column per finding; no label or no trust weighs nothing.

    Weights follow the trust. In each class of a finding they have a mean of 1, so that negatives per positive stay as
    they are, and differ so little that the effective number of labels falls by `cap` at most (.2). A rejected label
    weighs nothing, a confirmed one counts as trust 1. `balance=False` gives the trust itself. `floor` is the least
    trust that is used, so that no label is silenced altogether. `summary()` of the result says what was done.
    """
    if not 0 <= floor <= 1:
        raise UsageError(f"weights(floor={floor}): a weight lies between 0 and 1")
    share = _cap(cap, "weights", balance=balance)
    grid = _Grid.of(signal, "weights", ("says", "trust"), None)
    settled = _settled(signal)
    # Clipped before nulls are filled: a label without a trust weighs nothing, whatever the floor.
    trust = pl.when(settled == "confirmed").then(1.0).when(settled == "rejected").then(None)
    table = signal.select(
        "finding",
        "says",
        trust=pl.when(settled.is_null()).then(pl.col("trust").clip(lower_bound=floor)).otherwise(trust),
    )
    weight = pl.col("trust") if share is None else _spread(share, balance=balance)
    table = table.with_columns(weight=weight)
    values = grid.fill(table["weight"], 0.0)
    ids = pl.Series("image_id", grid.image_ids, dtype=pl.String)
    frame = pl.DataFrame(values, schema=dict.fromkeys(grid.findings, pl.Float64), orient="row")
    made = Weights(frame.insert_column(0, ids))
    made._report = _weights_report(table, grid)  # noqa: SLF001  of this module
    return made


def _spread(cap: float, *, balance: bool) -> pl.Expr:
    """Draw weights towards the mean of their class until they cost at most `cap` of its labels.

    With weights of mean 1 and variance v, n labels count as n / (1 + v) (Kish's effective sample size).
    """
    mean = pl.col("trust").mean().over(CLASS)
    relative = pl.when(mean > 0).then(pl.col("trust") / mean).otherwise(pl.when(mean == 0).then(1.0))
    varies = relative.std(ddof=0).over(CLASS)
    most = math.sqrt(cap / (1 - cap)) if cap < 1 else math.inf
    drawn = pl.when(varies > most).then(most / varies).otherwise(1.0)
    balanced = 1 + drawn * (relative - 1)
    return balanced if balance else balanced * mean


def _weights_report(table: pl.DataFrame, grid: _Grid) -> pl.DataFrame:
    weight, certain = pl.col("weight"), table.filter(pl.col("says").cast(pl.String).is_in(CERTAIN))
    counts = certain.group_by(CLASS).agg(
        labels=pl.len(),
        mean_trust=pl.col("trust").mean(),
        weight=weight.sum(),
        largest=weight.max(),
        effective=pl.when((weight**2).sum() > 0).then(weight.sum() ** 2 / (weight**2).sum()).otherwise(0.0),
    )
    return _with_ratios(grid.by_class(counts), "labels", pl.col("weight"))


def _with_ratios(report: pl.DataFrame, before: str, after: pl.Expr) -> pl.DataFrame:
    """Add negatives per positive, before and after; null where there is no positive."""

    def ratio(value: pl.Expr) -> pl.Expr:
        negatives, positives = (
            value.filter(pl.col("says") == each).sum().over("finding") for each in reversed(CERTAIN)
        )
        return pl.when(positives > 0).then(negatives / positives)

    return report.with_columns(ratio_before=ratio(pl.col(before)), ratio_after=ratio(after))


def _verdict(signal: pl.DataFrame) -> pl.Expr:
    """Give what people settled, `present` or `absent`; null elsewhere, and where a signal has no such columns."""
    found = pl.lit(None, pl.String)
    if "verdict" in signal.columns:
        found = pl.col("verdict").cast(pl.String)
        # A verdict that nobody stands for, a single read or a tie, is none.
        found = pl.when(pl.col("verdict_by").is_not_null()).then(found) if "verdict_by" in signal.columns else found
        found = pl.when(found.is_in(CERTAIN)).then(found)
    if "flag" in signal.columns:
        says, flag = pl.col("says").cast(pl.String), pl.col("flag").cast(pl.String)
        other = says.replace_strict({"present": "absent", "absent": "present"}, default=None, return_dtype=pl.String)
        found = pl.coalesce(found, pl.when(flag == "confirmed").then(says).when(flag == "rejected").then(other))
    return found


def _settled(signal: pl.DataFrame) -> pl.Expr:
    """Give `confirmed` or `rejected` for a label that people settled."""
    says, verdict = pl.col("says").cast(pl.String), _verdict(signal)
    right, wrong = (verdict == says, pl.lit("confirmed")), (verdict != says, pl.lit("rejected"))
    return pl.when(says.is_in(CERTAIN)).then(pl.when(right[0]).then(right[1]).when(wrong[0]).then(wrong[1]))


def _cap(cap: float | None, name: str, *, balance: bool) -> float | None:
    if cap is None:
        return CAP if balance else None
    if not 0 <= cap <= 1:
        raise UsageError(f"{name}(cap={cap}): it is a share of the labels. Give a number from 0 to 1, such as 0.2")
    return cap


def _share(part: Any, whole: Any) -> str:
    return f"{part / whole:.1%}" if whole else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Where each row of a signal stands in a matrix of images and findings."""

    image_ids: list[str]
    findings: list[str]
    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    """-1 where nobody asked for the finding."""
    own: list[str]
    """The findings as the signal spells them; empty where it does not have one."""

    @classmethod
    def of(cls, signal: pl.DataFrame, name: str, needed: Sequence[str], pathologies: Sequence[str] | None) -> _Grid:
        """Lay out a signal; a table that is none, a finding asked for twice, or a pair given twice is refused."""
        if not isinstance(signal, pl.DataFrame):
            raise UsageError(f"{name}(signal): {type(signal).__name__} is no Polars frame. Use bpals.load_signal(DIR)")
        if missing := [each for each in ("image_id", "finding", *needed) if each not in signal.columns]:
            raise UsageError(f"{name}(signal): no column {missing[0]!r}. Use the table that bpals.load_signal gives")
        known = _findings(signal)
        findings = known if pathologies is None else list(pathologies)
        folded = [fold(each) for each in findings]
        if doubled := [each for each, same in zip(findings, folded, strict=True) if folded.count(same) > 1][1:]:
            raise UsageError(f"{name}(pathologies=...): {', '.join(doubled)} is asked for twice")
        spelled = {fold(each): each for each in known}
        own = [spelled.get(fold(each), "") for each in findings]
        places = {each: place for place, each in enumerate(own) if each}
        ids = signal["image_id"].unique(maintain_order=True)
        numbers = pl.DataFrame({"image_id": ids, "row": np.arange(len(ids))})
        rows = signal.select("image_id").join(numbers, on="image_id", how="left", maintain_order="left")["row"]
        columns = signal["finding"].cast(pl.String).replace_strict(places, default=-1, return_dtype=pl.Int64)
        grid = cls(
            image_ids=ids.to_list(), findings=findings, rows=rows.to_numpy(), columns=columns.to_numpy(), own=own
        )
        grid.refuse_doubles(name)
        return grid

    def refuse_doubles(self, name: str) -> None:
        """Refuse a pair that stands in two rows: one of them would be lost."""
        here = self.columns >= 0
        pairs = self.rows[here] * len(self.findings) + self.columns[here]
        times = np.bincount(pairs)
        if times.size and times.max() > 1:
            row, column = divmod(int(times.argmax()), len(self.findings))
            pair = f"{self.image_ids[row]}, {self.findings[column]}"
            raise UsageError(f"{name}(signal): {pair} stands in {times.max()} rows. Give one signal, not several")

    def fill(self, values: pl.Series, blank: float) -> npt.NDArray[np.float64]:
        """Put one value per row of the signal into the matrix; null and what has no row are `blank`."""
        matrix = np.full((len(self.image_ids), len(self.findings)), blank)
        here = self.columns >= 0
        matrix[self.rows[here], self.columns[here]] = values.fill_null(blank).to_numpy()[here]
        return matrix

    def by_finding(self, counts: pl.DataFrame) -> pl.DataFrame:
        """Put counts into the order of the columns, under the names that were asked for."""
        asked = pl.DataFrame({"asked": self.findings, "finding": self.own}, schema_overrides={"asked": pl.String})
        spelled = counts.with_columns(pl.col("finding").cast(pl.String))
        joined = asked.join(spelled, on="finding", how="left", maintain_order="left")
        return joined.with_columns(finding="asked").drop("asked")

    def by_class(self, counts: pl.DataFrame) -> pl.DataFrame:
        """Do the same for counts by finding and direction; a finding without a label has no row."""
        asked = pl.DataFrame({"asked": self.findings, "finding": self.own}, schema_overrides={"asked": pl.String})
        both = asked.join(pl.DataFrame({"says": CERTAIN}), how="cross", maintain_order="left_right")
        joined = both.join(counts.with_columns(pl.col(CLASS).cast(pl.String)), on=CLASS, maintain_order="left")
        return joined.with_columns(finding="asked").drop("asked")


def _findings(signal: pl.DataFrame) -> list[str]:
    """Name the findings in the order of the vocabulary, or of their first appearance where there is none."""
    dtype = signal.schema["finding"]
    if isinstance(dtype, pl.Enum):
        return dtype.categories.to_list()
    return signal["finding"].unique(maintain_order=True).cast(pl.String).to_list()


class TargetDataset:
    """A dataset whose items carry soft targets as `lab`; everything else is the dataset's own."""

    def __init__(self, dataset: Any, labels: Values, unknown: int) -> None:
        """Keep the dataset and its new labels, one row per item."""
        self.dataset = dataset
        self.labels = labels
        self.pathologies = list(dataset.pathologies)
        self.unknown = unknown
        """Items that the targets do not know: their labels are NaN."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.dataset[index]
        if not isinstance(item, Mapping):
            raise UsageError(
                f"with_targets: an item is a {type(item).__name__}. It must be a dict with 'img' and 'lab'"
            )
        return {**item, "lab": self.labels[index]}

    def __getattr__(self, name: str) -> Any:
        # A worker of a DataLoader unpickles an object that has no attribute yet: it must not ask itself for ever.
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def string(self) -> str:
        """Describe it as TorchXRayVision's datasets describe themselves."""
        return repr(self)

    def __repr__(self) -> str:
        known = _share(float(np.isfinite(self.labels).sum()), self.labels.size)
        return f"<{type(self.dataset).__name__} with targets: {len(self):,} items, {known} of the labels known>"


def with_targets(dataset: Any, targets: Labels, *, image_ids: Sequence[str] | str | None = None) -> TargetDataset:
    """Give a TorchXRayVision-style dataset whose items carry the targets as `lab`.

    The dataset has `csv`, `pathologies` and `labels`, and items that are dicts with `img` and `lab`. `image_ids` are
    the ids of its items in order, or the column of `csv` that has them; without it the column is found. What the
    targets do not know, an image or a finding, is NaN. A mask is taken as well.
    """
    for name in ("csv", "pathologies", "labels"):
        if not hasattr(dataset, name):
            raise UsageError(
                f"with_targets: {type(dataset).__name__} has no .{name}. Give a dataset as torchxrayvision.datasets has"
            )
    places = {image_id: place for place, image_id in enumerate(targets.image_ids)}
    names = _item_ids(dataset, places, image_ids)
    if len(names) != len(dataset):
        raise UsageError(f"with_targets: {len(names):,} image ids for {len(dataset):,} items. Give one id per item")
    rows = np.array([_place(name, places) for name in names], dtype=np.int64)
    if len(rows) and (rows < 0).all():
        raise UsageError(
            f"with_targets: no item is an image of these targets (first: {names[0]}). "
            "Name the column of dataset.csv that has their ids: with_targets(..., image_ids='COLUMN')"
        )
    column = {fold(finding): place for place, finding in enumerate(targets.findings)}
    labels = np.full((len(rows), len(dataset.pathologies)), NOBODY, dtype=np.float32)
    for place, pathology in enumerate(dataset.pathologies):
        if (its := column.get(fold(str(pathology)))) is not None:
            labels[:, place] = np.where(rows >= 0, targets.values[rows, its], NOBODY)
    return TargetDataset(dataset, labels, int((rows < 0).sum()))


def _item_ids(dataset: Any, known: Mapping[str, int], given: Sequence[str] | str | None) -> list[str]:
    """Name the image of each item; the column of a dataset's table is the one with the most known ids."""
    if given is not None and not isinstance(given, str):
        return [str(each) for each in given]
    columns = list(dataset.csv.columns)
    if given is not None:
        if given not in columns:
            raise UnknownName.of("column", given, map(str, columns), where="with_targets(image_ids=...)")
        return [str(each) for each in dataset.csv[given]]
    tried = [[str(each) for each in dataset.csv[column]] for column in columns]
    return max(tried, key=lambda names: sum(_place(name, known) >= 0 for name in names), default=[])


def _place(name: str, known: Mapping[str, int]) -> int:
    """Find an image by its id, or by the last part of a path; -1 where it is not known."""
    return known.get(name, known.get(name.replace("\\", "/").rsplit("/", 1)[-1], -1))
