"""An expert calibration: coefficients that were fitted on expert labels elsewhere, read from a file and applied.

    logit P(present) = x + c m_k,    its variance = c C_k c + what other readers and unseen views add

x is the judges' logit of the pair, c its columns (`Inputs`), and m_k and C_k are the file's coefficients of the finding
or group and their covariance. Expert labels here correct the same sum (hierarchical.py).

The file is one of figures and holds no expert label. Its truth is what most radiologists who see the image alone would
say, not what the patient has. One fit is of all patients, and K fits each leave out a K-th of them, by a hash of the
patient: an image of a patient it was fitted on gets the fit without that patient, so that scoring there is honest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from bpals.errors import UsageError
from bpals.findings import Group
from bpals.numeric import SMALLEST, Matrix, logit, patients, sigmoid
from bpals.signal.layout import Bools, Estimate, Ints, LaidOut, Pairs, in_blocks
from bpals.text import several
from bpals.types import Dataset

FORMAT = "bpals expert calibration"
VERSION = 1
FOLDS = 5
READERS = 0.3
"""How far the logit of another panel of readers is expected to differ, as a standard deviation."""
UNSEEN = 0.5
"""The same for a view of which next to no image was read ..."""
ALONE = 2.1
"""The same for a labelled presence of a patient with one image, where next to none was read: nothing but the label
speaks for it, so that all of them have a low trust, right or wrong ..."""
SELDOM = 0.05
"""... that is, less than this share of the labels of a finding ..."""
FEW_ALONE = 10
"""... and for presences of patients with one image fewer than this: one or two of a dozen are no evidence."""
FEWER = FOLDS / (FOLDS - 1)
"""The covariance is that of the whole fit; a fit on fewer patients is that much less sure."""
DIRECTION = ("present", "absent", "present x logit", "absent x logit", "absent, no finding")
"""The first columns of every pair; the others follow."""
PRESENT = DIRECTION.index("present")
FARTHEST = 4.0
"""A circumstance counts at most so many deviations from its mean."""
NOBODY: frozenset[int] = frozenset()
"""No patient is left out."""
ABOUT = ("truth", "judge", "sources", "citations", "terms", "commercial_use", "made_with")
"""What a file says about itself, for people and for the gate of a release."""


def fold_of_patient(names: pl.Series) -> Ints:
    """Give each image a fold by a hash of its patient alone."""
    unique = names.unique(maintain_order=True).to_list()
    folds = [int.from_bytes(hashlib.sha256(b"calibrate:" + name.encode()).digest()[:4]) % FOLDS for name in unique]
    return names.replace_strict(unique, folds, return_dtype=pl.Int64).to_numpy()


def lone_images(images: pl.DataFrame) -> Bools:
    """Say which images are the only one of their patient."""
    return np.asarray(patients(images).to_frame("patient").select(pl.len().over("patient") == 1).to_series().to_numpy())


def patient_hash(name: str) -> str:
    """Name a patient in a calibration file."""
    return hashlib.sha256(b"calibrated:" + name.encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectFit:
    """The coefficients of one finding or group."""

    means: Matrix
    """A row per fit: of all patients, then without each fold."""
    covariance: Matrix
    labels: int = 0
    errors: int = 0
    presences: int = 0
    alone: int = 0
    """How many of the presences are of patients with one image."""
    views: Mapping[str, int] = field(default_factory=dict)
    """View -> how many of the labels are of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFit:
    """The findings, or the groups."""

    columns: tuple[str, ...]
    subjects: Mapping[str, SubjectFit]
    ordered: dict[tuple[str, tuple[str, ...]], tuple[Matrix, Matrix]] = field(
        default_factory=dict, init=False, repr=False
    )
    """Subject and columns -> the answers of `coefficients`, which every block of images asks for."""

    def coefficients(self, subject: str, columns: tuple[str, ...]) -> tuple[Matrix, Matrix]:
        """Give a subject's means and covariance in the order of some columns; 0 for what it does not know."""
        if (subject, columns) not in self.ordered:
            count, fit = len(columns), self.subjects.get(subject)
            means, covariance = np.zeros((FOLDS + 1, count)), np.zeros((count, count))
            if fit is not None:
                known = np.array([name in columns for name in self.columns], dtype=bool)
                at = [columns.index(name) for name in self.columns if name in columns]
                means[:, at] = fit.means[:, known]
                covariance[np.ix_(at, at)] = fit.covariance[np.ix_(known, known)]
            self.ordered[subject, columns] = means, covariance
        return self.ordered[subject, columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCalibration:
    """A calibration as its file has it."""

    name: str
    dataset: str
    vocabulary: tuple[str, ...]
    images: int
    """How many images the metadata judge learned from: on far fewer its answers mean something else."""
    groups: tuple[Group, ...]
    typical: tuple[float, float]
    usual: Mapping[str, float]
    """Finding -> the mean logit of the metadata judge."""
    circumstances: Mapping[str, tuple[float, float]]
    """Name -> mean and deviation."""
    patients: frozenset[str]
    """The patients it was fitted on, hashed."""
    findings: LevelFit
    of_groups: LevelFit
    about: Mapping[str, Any]
    """What it was fitted on, citations, terms: for people, and for the release's gate."""
    sha256: str = ""

    @property
    def inputs(self) -> frozenset[str]:
        """The hashes of the expert files it was fitted on."""
        return frozenset(one for source in self.about["sources"] for one in source["inputs"].values())

    @property
    def labels(self) -> int:
        """How many expert labels it was fitted on."""
        return sum(source["labels"] for source in self.about["sources"])

    @property
    def read_images(self) -> int:
        """How many images those are of."""
        return sum(source["images"] for source in self.about["sources"])


def content_hash(content: Mapping[str, Any]) -> str:
    """Hash a calibration's content, but for the hash itself."""
    kept = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def from_dict(content: Mapping[str, Any], where: str) -> ExpertCalibration:
    """Read a calibration; another format, version or hash is refused."""
    if content.get("format") != FORMAT:
        raise UsageError(f"{where} is no expert calibration. Make one with: bpals calibration fit")
    if content.get("version") != VERSION:
        raise UsageError(
            f"{where} has version {content.get('version')} of the format, and this bpals reads version {VERSION}. "
            "Fit it again with: bpals calibration fit"
        )
    if content.get("sha256") != content_hash(content):
        raise UsageError(
            f"{where} is damaged or was edited: its content does not match its sha256. Get it again, or fit it again "
            "with: bpals calibration fit"
        )
    present, absent = content["typical"]
    return ExpertCalibration(
        name=content["name"],
        dataset=content["dataset"],
        vocabulary=tuple(content["vocabulary"]),
        images=content["images"],
        groups=tuple(Group(name=name, members=tuple(members)) for name, members in content["groups"].items()),
        typical=(present, absent),
        usual=content["usual"],
        circumstances={name: (mean, deviation) for name, (mean, deviation) in content["circumstances"].items()},
        patients=frozenset(content["patients"]),
        findings=_level_from_dict(content["findings"]),
        of_groups=_level_from_dict(content["of_groups"]),
        about={name: content[name] for name in ABOUT if name in content},
        sha256=content["sha256"],
    )


def _level_from_dict(content: Mapping[str, Any]) -> LevelFit:
    size = len(content["columns"])
    lower = np.tril_indices(size)
    subjects = {}
    for name, fit in content["subjects"].items():
        covariance = np.zeros((size, size))
        covariance[lower] = fit["covariance"]
        subjects[name] = SubjectFit(
            means=np.array(fit["means"]),
            covariance=covariance + np.tril(covariance, -1).T,
            labels=fit["labels"],
            errors=fit["errors"],
            presences=fit["presences"],
            alone=fit["alone"],
            views=fit["views"],
        )
    return LevelFit(columns=tuple(content["columns"]), subjects=subjects)


def suits(calibration: ExpertCalibration, dataset: Dataset) -> str:
    """Say why a calibration cannot be used for a dataset; empty where it can."""
    if calibration.dataset != dataset.name:
        return f"it was fitted for the dataset {calibration.dataset}, and this is {dataset.name}"
    if set(calibration.vocabulary) != set(dataset.vocabulary.findings):
        other = sorted(set(calibration.vocabulary) ^ set(dataset.vocabulary.findings))
        return f"its findings are not those that are audited here ({', '.join(other[:3])})"
    return ""


Rows = Ints | slice
"""Some of the images."""
Start = Callable[[int, Rows, frozenset[int]], Matrix]
"""From a subject, rows of images and the patients left out to the logits that the columns correct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the model knows of every image: subjects are the findings, then the groups."""

    subjects: tuple[str, ...]
    start: Start
    claims: Matrix
    """The labels, a column per subject: 1, 0, or neither."""
    findings: tuple[str, ...]
    others: Matrix
    """The judges' logits, a column per finding, less what is usual; 0 where nobody answered."""
    no_finding: Matrix
    """1 where the image carries no label of presence."""
    typical: tuple[float, float]
    """The mean logit of labelled presences, and of absences."""
    seen: Matrix | None = None
    """1 where an image judge took part, a column per subject; None: none did anywhere."""
    circumstances: Mapping[str, Matrix] = field(default_factory=dict)
    """View, age and the like, by name: mean 0, deviation 1."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Name the columns, in order."""
        seen = () if self.seen is None else ("seen", "seen x logit")
        return (*DIRECTION, *self.findings, *seen, *self.circumstances)

    def lay(self, subject: int, rows: Rows, start: Matrix) -> Matrix:
        """Lay the columns of some images out, each column's numbers one behind the other in memory."""
        claim = self.claims[rows, subject]
        laid = np.empty((len(start), len(self.columns)), order="F")
        for place, direction in enumerate((1, 0)):
            laid[:, place] = claim == direction
            np.multiply(laid[:, place], start - self.typical[place], out=laid[:, place + 2])
        np.multiply(laid[:, 1], self.no_finding[rows], out=laid[:, 4])
        at = len(DIRECTION)
        laid[:, at : at + len(self.findings)] = self.others[rows]
        name = self.subjects[subject]
        if name in self.findings:  # what is corrected does not correct itself
            laid[:, at + self.findings.index(name)] = 0
        at += len(self.findings)
        if self.seen is not None:
            seen = self.seen[rows, subject]
            laid[:, at] = seen
            laid[:, at + 1] = seen * (laid[:, 2] + laid[:, 3])
            at += 2
        for place, values in enumerate(self.circumstances.values()):
            laid[:, at + place] = values[rows]
        # Where nobody answered the result is no number anyway, but it must not spoil a sum over images.
        if (silent := np.isnan(start)).any():
            laid[silent] = 0
        return laid


def inputs_of(
    parts: Sequence[Estimate],
    laid: LaidOut,
    read: Callable[[Sequence[Pairs]], Inputs],
    scales: Mapping[str, tuple[float, float]],
) -> list[tuple[Inputs, Inputs]]:
    """Lay out what the model knows of the findings, and of the groups: by all judges, and by the metadata judge alone.

    A calibration was fitted on what the metadata judge says, so that is what it reads. `read` lays one of the two out,
    as `laid_inputs` does. Groups start where what was made of their members ends, which the caller knows.
    """
    of_all = of_record = read([its.pairs for its in parts])
    if parts[0].moved.any():
        of_record = read([its.record for its in parts])
        seen = np.concatenate([its.moved for its in parts], axis=1).astype(float, order="F")
        of_all = replace(of_all, seen=seen)
    levels = [(of_all, of_record)]
    if parts[1:]:
        known, count = _standardised(circumstances(laid), scales), len(of_all.findings)

        def of_groups(inputs: Inputs) -> Inputs:
            seen = None if inputs.seen is None else inputs.seen[:, count:]
            names, claims = inputs.subjects[count:], inputs.claims[:, count:]
            return replace(inputs, subjects=names, claims=claims, seen=seen, circumstances=known)

        first = of_groups(of_all)
        levels.append((first, first if of_record is of_all else of_groups(of_record)))
    return levels


def laid_inputs(levels: Sequence[Pairs], named: Sequence[Group], typical: tuple[float, float], usual: Matrix) -> Inputs:
    """Lay out what the model knows of every image; `levels` are the findings, and the groups `named`."""
    pairs = levels[0]
    subjects = (*pairs.findings, *(group.name for group in named))
    shape, count = (len(pairs.states), len(subjects)), len(pairs.findings)
    every, claims = (np.empty(shape, order="F") for _ in range(2))
    others, no_finding = np.empty((len(pairs.states), count), order="F"), np.empty(len(pairs.states))

    def lay(rows: slice) -> None:
        p, states = pairs.p_present[rows], pairs.states[rows]
        every[rows, :count] = logit(p)
        others[rows] = np.nan_to_num(every[rows, :count] - usual)
        no_finding[rows] = np.nan_to_num(states).sum(axis=1) == 0
        claims[rows] = np.nan_to_num(np.concatenate([its.states[rows] for its in levels], axis=1), nan=0.5)
        for place, group in enumerate(named):
            own = levels[1].p_present[rows, place]
            every[rows, count + place] = united(p[:, pairs.members(group)], own)

    in_blocks(len(every), lay)
    return Inputs(
        subjects=subjects,
        start=lambda place, rows, _without: every[rows, place],
        claims=claims,
        findings=pairs.findings,
        others=others,
        no_finding=no_finding,
        typical=typical,
    )


def quadratic(laid: Matrix, covariance: Matrix) -> Matrix:
    """Give the variance of each image's sum of columns times coefficients: c C c."""
    # Columns are laid out one behind the other, so the product is made in that order too.
    product = covariance @ laid.T
    product *= laid.T
    return np.asarray(product.sum(axis=0))


def united(members: Matrix, own: Matrix) -> Matrix:
    """Give the logit of a group from its members' probabilities, half-way between their sum and 1 - product.

    Report-mined labels seldom name two members, which the sum takes for granted; findings do come together, which the
    product takes for chance. Where a member has no answer, it is that of the judge about the group: `own`.
    """
    summed = np.minimum(members.sum(axis=1), 1 - SMALLEST)
    z = logit((summed + 1 - np.prod(1 - members, axis=1)) / 2)
    return np.where(np.isnan(z), logit(own), z)


def circumstances(laid: LaidOut) -> dict[str, Matrix]:
    """Give what is known of each image beside its labels, by name; what is not known is as usual.

    Readers' word for a group is wider than the names of its members, and these say where.
    """
    images, reports = laid.dataset.images, laid.reports
    known = {"AP view": images["view"] == "AP", "male": images["sex"].str.to_uppercase().str.starts_with("M")}
    known |= {name: images[name] for name in ("age", "width_px", "height_px")}
    known |= {"reports before": reports["rank"], "reports after": reports["size"] - 1 - reports["rank"]}
    given = {}
    for name, values in known.items():
        numbers = values.cast(pl.Float64)
        filled = numbers.fill_null(numbers.mean() or 0.0).to_numpy()
        given[name] = np.log1p(filled) if name.startswith("reports") else filled
    return given


def _standardised(given: Mapping[str, Matrix], scales: Mapping[str, tuple[float, float]]) -> dict[str, Matrix]:
    """Give each circumstance mean 0 and deviation 1, by its scale or else in this dataset; far ones are held."""
    scaled = {}
    for name, values in given.items():
        mean, deviation = scales[name] if name in scales else (float(values.mean()), float(values.std()))
        scaled[name] = np.clip((values - mean) / (deviation if deviation > SMALLEST else 1.0), -FARTHEST, FARTHEST)
    return scaled


@dataclass(frozen=True, kw_only=True)
class Prior:
    """A calibration beside a dataset: which of its fits each image gets."""

    calibration: ExpertCalibration
    level: LevelFit
    which: Ints
    """For each image the row of `means`: 0, or 1 + the fold of a patient that it was fitted on."""
    view: pl.Series
    alone: Bools
    """Which images are the only one of their patient."""
    known: dict[tuple[str, ...], Bools] = field(default_factory=dict)
    """Views -> which images have none of them."""

    @classmethod
    def of(cls, calibration: ExpertCalibration, level: LevelFit, images: pl.DataFrame) -> Prior:
        """Find the patients of a dataset that a calibration was fitted on."""
        names = patients(images)
        unique = names.unique(maintain_order=True)
        fitted = unique.filter([patient_hash(name) in calibration.patients for name in unique.to_list()])
        own = names.is_in(fitted.implode()).to_numpy()
        which = np.zeros(images.height, dtype=np.int64)
        which[own] = fold_of_patient(names.filter(own)) + 1
        return cls(
            calibration=calibration,
            level=level,
            which=which,
            view=images["view"].cast(pl.String).fill_null(""),
            alone=lone_images(images),
        )

    @cached_property
    def crossed(self) -> Bools:
        """Say which images are of a patient that it was fitted on."""
        return np.asarray(self.which > 0)

    def note(self, subject: str) -> str:
        """Say what the trust of a finding rests on that nobody read here."""
        known = self.level.subjects.get(subject)
        if known is None or not known.labels:
            return f"calibrated: {self.calibration.name}, by what readers say of other findings"
        return f"calibrated: {self.calibration.name}, {several(known.labels, 'expert label')} of {subject}"

    def shift(self, subject: str, columns: tuple[str, ...], laid: Matrix, rows: Rows) -> Matrix:
        """Give what it adds to the logits of some images."""
        means, _ = self.level.coefficients(subject, columns)
        added, which = laid @ means[0], self.which[rows]
        own = np.flatnonzero(which)
        added[own] = np.einsum("ij,ij->i", laid[own], means[which[own]])
        return np.asarray(added)

    def covariance(self, subject: str, columns: tuple[str, ...]) -> Matrix:
        """Give the covariance of a subject's coefficients; 0 for what it does not know."""
        return self.level.coefficients(subject, columns)[1]

    def variance(self, subject: str, columns: tuple[str, ...], laid: Matrix, rows: Rows) -> Matrix:
        """Say how unsure its answer is: by its fit, by other readers, and more where it extrapolates."""
        certain = np.where(self.which[rows] > 0, FEWER, 1.0)
        own = quadratic(laid, self.covariance(subject, columns)) * certain
        return np.asarray(own + READERS**2 + self.extrapolation(subject, laid, rows))

    def extrapolation(self, subject: str, laid: Matrix, rows: Rows) -> Matrix:
        """Give the variance that is added where it was hardly fitted: unread views, presences of lone images."""
        added = UNSEEN**2 * self.extrapolates(subject)[rows]
        fit = self.level.subjects.get(subject)
        if fit is None or fit.alone < max(FEW_ALONE, SELDOM * fit.presences):
            added = added + ALONE**2 * self.alone[rows] * laid[:, PRESENT]
        return np.asarray(added)

    def extrapolates(self, subject: str) -> Bools:
        """Say which images have a view of which next to no label of the subject was read."""
        fit = self.level.subjects.get(subject)
        views = {} if fit is None else fit.views
        often = tuple(name for name, count in views.items() if count >= SELDOM * sum(views.values()))
        if often not in self.known:  # most subjects were read on the same views
            self.known[often] = np.asarray(~self.view.is_in(often).to_numpy())
        return self.known[often]


def calibrated(
    laid: LaidOut, findings: Estimate, groups: Estimate | None, calibration: ExpertCalibration
) -> tuple[Estimate, Estimate | None]:
    """Correct findings and groups by a calibration, where no expert label is given here; a group bounds its members."""
    parts = [findings] if groups is None else [findings, groups]
    models = inputs_of(parts, laid, lambda levels: read_by(calibration, levels, laid.named), calibration.circumstances)
    first = Prior.of(calibration, calibration.findings, laid.dataset.images)
    priors = [first, replace(first, level=calibration.of_groups)]
    logits, deviations = ([np.empty(part.p_present.shape, order="F") for part in parts] for _ in range(2))

    def correct(rows: slice) -> None:
        for level, (part, (own, read), prior) in enumerate(zip(parts, models, priors, strict=False)):
            for place, subject in enumerate(part.pairs.findings):
                if level:
                    members = logits[0][rows, parts[0].pairs.members(laid.named[place])]
                    start = before = united(sigmoid(members), part.pairs.p_present[rows, place])
                else:
                    start, before = (each.start(place, rows, NOBODY) for each in (own, read))
                columns = own.lay(place, rows, start)
                known = columns if read is own else read.lay(place, rows, before)
                logits[level][rows, place] = start + prior.shift(subject, read.columns, known, rows)
                variance = prior.variance(subject, own.columns, columns, rows)
                deviations[level][rows, place] = np.sqrt(np.maximum(variance, 0))

    in_blocks(len(first.which), correct)
    done = [_corrected(*each) for each in zip(parts, logits, deviations, priors, strict=False)]
    return (done[0], None) if len(done) == 1 else bounded(done[0], done[1], laid.named)


def read_by(calibration: ExpertCalibration, levels: Sequence[Pairs], named: Sequence[Group]) -> Inputs:
    """Lay out what a calibration reads: less what was usual where it was fitted."""
    usual = np.array([calibration.usual[name] for name in levels[0].findings])
    return laid_inputs(levels, named if levels[1:] else (), calibration.typical, usual)


def _corrected(part: Estimate, z: Matrix, spread: Matrix, prior: Prior) -> Estimate:
    """Lay corrected logits and their deviations back; a finding about which nobody answered stays as it is."""
    p_present, whole = np.empty(z.shape), np.empty(z.shape)
    answered = ~np.isnan(part.pairs.p_present)
    spoken = np.asarray(answered.any(axis=0))

    def lay(rows: slice) -> None:
        given = answered[rows]
        p_present[rows] = np.where(given, sigmoid(z[rows]), np.where(spoken, np.nan, part.p_present[rows]))
        whole[rows] = np.where(spoken, np.hypot(spread[rows], part.pairs.spread[rows]), part.spread[rows])

    in_blocks(len(z), lay)
    return replace(
        part,
        p_present=p_present,
        spread=whole,
        fitted=answered,
        reviewed=answered & prior.crossed[:, None],
        notes={name: prior.note(name) for name, said in zip(part.pairs.findings, spoken.tolist(), strict=True) if said},
        fitted_by=prior.calibration.name,
    )


def bounded(part: Estimate, groups: Estimate, named: Sequence[Group]) -> tuple[Estimate, Estimate]:
    """Hold the members of each group below it: a member cannot be more probable than the group.

    Where one is, the two meet at the mean of their logits, each weighed by how sure it is, and all members shrink
    alike: what readers say of a group says nothing of which member is there, so the members keep their order.
    """
    p_present, of_groups = part.p_present.copy(), groups.p_present.copy()
    for column, group in enumerate(named):
        members, whole = np.array(part.pairs.members(group)), of_groups[:, column]
        its = np.nan_to_num(p_present[:, members])
        most = its.argmax(axis=1)
        over = np.flatnonzero(~np.isnan(whole) & (its.max(axis=1) > whole))
        highest = its[over, most[over]]
        unsure = [part.spread[:, members][over, most[over]], groups.spread[over, column]]
        firm = [1 / np.maximum(spread, SMALLEST) ** 2 for spread in unsure]
        met = sigmoid((firm[0] * logit(highest) + firm[1] * logit(whole[over])) / (firm[0] + firm[1]))
        p_present[np.ix_(over, members)] *= (met / highest)[:, None]
        of_groups[over, column] = met
    return replace(part, p_present=p_present), replace(groups, p_present=of_groups)
