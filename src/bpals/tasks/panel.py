"""The panel of an audit: the record judge and the sealed image judges, seated before anything is asked of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from bpals.errors import UnknownName, UsageError, WorkspaceError
from bpals.findings import Group, Vocabulary
from bpals.judges.record import RecordJudge, fold_of
from bpals.numeric import patients
from bpals.reviews import verdicts
from bpals.reviews.verdicts import load_many
from bpals.score.skill import Scores, Yardstick
from bpals.signal.layout import Ints, LaidOut, Panel, by_finding, read_answers, sound
from bpals.signal.observations import DeviceAnswers, read_checks, read_devices
from bpals.signal.trust import Signal
from bpals.store.workspace import ALL_JUDGES, RECORD_JUDGE, SealedFilms, SealedJudge, Workspace, open_films
from bpals.text import several
from bpals.types import SKILL, Dataset, JudgeCard, Notice, Reference, Reviews

_PAIR = ["image_id", "finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Labels to calibrate on, single reads, labels of a random sample, and what was noticed in reading them."""

    reference: Reference | None
    reviews: Reviews | None
    random_sample: Reference | None
    notices: tuple[Notice, ...]

    @property
    def given(self) -> bool:
        """Whether any expert was heard."""
        return self.reference is not None or self.reviews is not None

    def groups_within(self, vocabulary: Vocabulary) -> list[Group]:
        """Name the groups that they speak of and all of whose members a dataset audits."""
        said = [] if self.reference is None else self.reference.groups_within(vocabulary)
        read = [] if self.reviews is None else self.reviews.groups_within(vocabulary)
        return [*said, *(group for group in read if group not in said)]

    def unshifted(self, shifted: Collection[str]) -> list[Notice]:
        """Say of which findings the random sample moved nothing: only what was fitted can be shifted."""
        if self.random_sample is None:
            return []
        notices = []
        sides = self.random_sample.truth.group_by("finding", maintain_order=True).agg(
            pl.len(), pl.col("present").mean()
        )
        for finding, pairs, share in sides.iter_rows():
            if finding in shifted:
                continue
            all_alike = {0.0: "absent", 1.0: "present"}.get(share)
            labels = several(pairs, "label is", "labels are all")
            why = f"its {labels} {all_alike}" if all_alike else "nothing was fitted for it"
            message = f"--refit: {finding} was not shifted: {why}"
            notices.append(Notice(code="unshifted", count=pairs, message=message))
        return notices


def load_experts(use: Mapping[str, Any], dataset: Dataset, own: Reviews | None = None) -> Experts:
    """Read what the values of an audit name, and add `own` reads; what is about films that are not here is counted."""
    notices: list[Notice] = []
    reference = _labels(use, "calibrate", dataset, notices)
    reviews = None
    if use["reviews"] is not None:
        read = load_many(use["reviews"], vocabulary=dataset.vocabulary, split=use["reviews_split"])
        reviews = verdicts.of_films(read, dataset.images)
        notices += reviews.notices
    if own is not None:
        here = _of_films(own, dataset)
        notices += here.notices
        reviews = _together(reviews, here)
    if use["refit"] is not None and reference is None and reviews is None:
        raise UsageError(
            f"--refit {use['refit']} only shifts what was fitted, and nothing was. Type: bpals audit --calibrate "
            f"KIND=PATH --refit {use['refit']}"
        )
    sample = _labels(use, "refit", dataset, notices)
    notices += _taught_before(sample, reference, reviews)
    return Experts(reference=reference, reviews=reviews, random_sample=sample, notices=tuple(notices))


def _of_films(own: Reviews, dataset: Dataset) -> Reviews:
    """Keep the workspace's own reads of films that are here; all of them may be of another dataset."""
    here = own.table.join(dataset.images.select("image_id"), on="image_id", how="semi", maintain_order="left")
    if here.height == own.table.height:
        return own
    strange = verdicts.unknown_films(", ".join(own.inputs), own.table, dataset.images)
    return replace(own, table=here, notices=(*own.notices, *strange))


def _together(given: Reviews | None, own: Reviews) -> Reviews | None:
    """Put the reads of a file before those of the workspace; what is in both counts once."""
    if given is None or own.table.is_empty():
        return given if own.table.is_empty() else own
    others = given.table.join(own.table, on=[*_PAIR, "reader"], how="anti", maintain_order="left")
    settled = given.settled.join(own.settled, on=_PAIR, how="anti", maintain_order="left")
    return Reviews(
        table=pl.concat([others, own.table]),
        groups=tuple(dict.fromkeys([*given.groups, *own.groups])),
        inputs={**given.inputs, **own.inputs},
        settled=pl.concat([settled, own.settled]),
    )


def _taught_before(sample: Reference | None, reference: Reference | None, reviews: Reviews | None) -> list[Notice]:
    """Count the films of the random sample that also teach: they would count twice."""
    if sample is None:
        return []
    films = set(sample.truth["image_id"])
    taught = set() if reference is None else set(reference.truth["image_id"])
    taught |= set() if reviews is None else set(reviews.table["image_id"])
    if not (both := len(films & taught)):
        return []
    message = (
        f"--refit: of its {several(len(films), 'film')} {several(both, 'is', 'are')} also among those that the trust "
        "is fitted on. Such a film counts twice, and films that were chosen to be fitted on are seldom a random "
        "sample: draw others"
    )
    return [Notice(code="refit_overlap", count=both, message=message)]


def _labels(use: Mapping[str, Any], option: str, dataset: Dataset, notices: list[Notice]) -> Reference | None:
    """Read the expert labels of one option."""
    if use[option] is None:
        return None
    typed = f"--{option}"
    kind = verdicts.parse(use[option], typed)[0]
    if kind == "boxes":
        raise UsageError(
            f"{typed} boxes: they are presences only, and nothing can be fitted without absences. "
            f"Type: bpals audit {typed} four-findings=PATH"
        )
    labels = verdicts.load(use[option], vocabulary=dataset.vocabulary, split=use[f"{option}_split"], option=typed)
    notices += [*labels.notices, *verdicts.unknown_films(kind, labels.truth, dataset.images)]
    return labels


ANSWER = pl.Schema({"image_id": pl.String(), "finding": pl.String(), "outcome": pl.String(), "p_present": pl.Float64()})
"""What is heard of a judge's table."""
MOST_NAMED = 3
"""Unknown findings that a notice names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The judges that an audit is to use."""

    record: RecordJudge | None
    sealed: tuple[SealedJudge, ...]
    notices: tuple[Notice, ...] = ()
    films: SealedFilms | None = None
    """What was found out about the films themselves; None where nobody looked at them."""

    def read_panel(self, dataset: Dataset) -> tuple[Panel, list[Notice]]:
        """Read what the sealed judges answer about this dataset; answers about others are counted."""
        judges, devices, notices = [], [], list(self.notices)
        for judge in self.sealed:
            here, foreign = _of_dataset(judge.name, _columns(judge, judge.answers(), ANSWER), dataset)
            here, nothing = self._of_shown(judge.name, here)
            kept, strange = sound(judge.name, here)
            notices += [*foreign, *nothing, *strange]
            answers = read_answers(judge.name, kept, dataset.images, dataset.vocabulary.findings)
            trained = judge.card.get("trained_on_target") == "yes" and not judge.card.get("held_out")
            judges.append(replace(answers, model=str(judge.card.get("model") or ""), trained=trained))
            notices += [_was_trained(judge.name)] if trained else []
            if (films := judge.film_answers()) is not None:
                its = _columns(judge, films.rename({"topic": "finding"}, strict=False), ANSWER)
                kept, strange = sound(judge.name, its)
                notices += strange
                kept = kept.rename({"finding": "topic"})
                devices.append(DeviceAnswers(judge=judge.name, answers=kept, offsets=judge.offsets))
        panel = Panel(
            judges=tuple(judges),
            fold=self._fold(dataset.images) if judges else np.zeros(0, dtype=np.int64),
            devices=read_devices(dataset.images, devices),
            checks=None if self.films is None else read_checks(dataset.images, self.films.table),
        )
        return panel, notices

    def _of_shown(self, judge: str, answers: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
        """Leave out what is said of films that show nothing: it is no evidence."""
        if self.films is None:
            return answers, []
        blank = self.films.table.filter(pl.col("blank")).select("image_id")
        kept = answers.join(blank, on="image_id", how="anti", maintain_order="left")
        if kept.height == answers.height:
            return answers, []
        told = "films that show nothing"
        return kept, [_passed_over("blank_films", judge, answers.height - kept.height, answers.height, told)]

    def _fold(self, images: pl.DataFrame) -> Ints:
        """Give the record judge's fold of each film; without a record judge all films are in one."""
        if self.record is None:
            return np.zeros(images.height, dtype=np.int64)
        return fold_of(patients(images).to_numpy().astype(np.str_), self.record.folds)

    def entries(self, signal: Signal) -> list[dict[str, Any]]:
        """Write down each judge: its card, what it answered, its skill and its weight."""
        entries = [] if self.record is None else [self.record.card.as_dict()]
        for judge in self.sealed:
            unsaid = JudgeCard(judge=judge.name, kind="image", version="").as_dict() | {"fingerprint": ""}
            told = {"judge": judge.name, "kind": "image", "sealed": judge.sha256, "counts": judge.record["counts"]}
            entries.append(unsaid | judge.card | told)
        for entry in entries:
            its = signal.skill.filter(pl.col("judge") == entry["judge"]).drop("judge")
            shares = signal.shares.get(entry["judge"], {})
            entry["effective_weight"] = signal.weights.get(entry["judge"], 0.0)
            entry["skill"] = [{**row, "weight": shares.get(row["finding"])} for row in its.iter_rows(named=True)]
        return entries


def choose(home: Workspace, wanted: str | Sequence[str]) -> Chosen:
    """Find the judges that are asked for by name; `all` are the record judge and every sealed one."""
    names = [name.strip() for name in wanted.split(",")] if isinstance(wanted, str) else list(wanted)
    names, films = list(dict.fromkeys(filter(None, names))), open_films(home.path)
    if not names:
        raise UsageError(f"--judges names no judge. Type: --judges {RECORD_JUDGE}, or leave it out to use all")
    if names == [ALL_JUDGES]:
        sealed = tuple(home.judges())
        return Chosen(record=RecordJudge(), sealed=sealed, notices=tuple(_unsealed(home)), films=films)
    known = [RECORD_JUDGE, *home.judge_names()]
    for name in names:
        if name not in known:
            raise UnknownName.of("judge", name, known, where=f"--judges, in {home.path}")
    sealed = tuple(home.judge(name) for name in names if name != RECORD_JUDGE)
    return Chosen(record=RecordJudge() if RECORD_JUDGE in names else None, sealed=sealed, films=films)


def without_signal(signal: Signal, findings: Sequence[str]) -> list[Notice]:
    """Say once of each image judge on which findings it has no signal; the record judge is where all others start."""
    notices = []
    silent = ~pl.col("signal") & (pl.col("judge") != RECORD_JUDGE)
    own = signal.skill.filter(silent, pl.col("finding").is_in(list(findings)))
    for judge, none in own.group_by("judge", maintain_order=True).agg("finding").iter_rows():
        which = "any finding" if len(none) == len(findings) else ", ".join(none)
        message = f"{judge} has no signal for {which}: there it does not move the trust"
        notices.append(Notice(code="no_signal", count=len(none), message=message))
    return notices


def _was_trained(judge: str) -> Notice:
    message = (
        f"{judge} was trained on the labels that it judges, as its card says: it may repeat them, so it weighs half. "
        "If the patients here were kept out of its training, say held_out in its card"
    )
    return Notice(code="trained_on_target", count=1, message=message)


def measure(laid: LaidOut, reference: Reference | None = None) -> pl.DataFrame:
    """Measure how well every judge tells findings and groups (SKILL), the metadata judge first where it answered."""
    yardstick, skills = Yardstick.of(laid.dataset.images, reference), [pl.DataFrame(schema=SKILL)]
    for level in laid.levels:
        findings, states = level.record.findings, by_finding(level.record.states)
        own = [(RECORD_JUDGE, by_finding(level.record.p_present)), *((its.name, its.evidence) for its in level.judges)]
        for judge, given in own:
            skill = yardstick.measure(Scores(judge=judge, findings=findings, given=given, states=states))
            skills += [skill] if judge != RECORD_JUDGE or skill["n"].sum() else []
    return pl.concat(skills)


def _unsealed(home: Workspace) -> list[Notice]:
    return [
        Notice(
            code="unsealed_judge",
            count=1,
            message=f"{name} was left out: its answers lie in {home.path} without the record that seals them. "
            "Run it to its end with bpals judge run",
        )
        for name in home.unsealed()
    ]


def _columns(judge: SealedJudge, table: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Take the columns that are heard; a table without one of them is refused, and a word is no number."""
    if lacking := [name for name in schema if name not in table.columns]:
        raise WorkspaceError(
            f"{judge.path / judge.name}.parquet has no column {', '.join(map(repr, lacking))}. "
            f"Run {judge.name} again (bpals judge run), or leave it out with --judges"
        )
    return table.select(pl.col(name).cast(dtype, strict=False) for name, dtype in schema.items())


def _of_dataset(judge: str, answers: pl.DataFrame, dataset: Dataset) -> tuple[pl.DataFrame, list[Notice]]:
    """Keep the answers about films and findings that this dataset has; the others are counted."""
    named = pl.col("finding").is_in(list(dataset.vocabulary.findings))
    known, films = answers.filter(named), dataset.images.select("image_id")
    unknown, elsewhere = answers.filter(~named), known.join(films, on="image_id", how="anti", maintain_order="left")
    notices = []
    if unknown.height:
        names = unknown["finding"].unique().sort().to_list()
        more = f" and {several(len(names) - MOST_NAMED, 'other')}" if len(names) > MOST_NAMED else ""
        told = f"what is not audited here ({', '.join(map(str, names[:MOST_NAMED]))}{more})"
        notices.append(_passed_over("foreign_findings", judge, unknown.height, answers.height, told))
    if elsewhere.height:
        told = f"no film that is here (first: {elsewhere['image_id'][0]})"
        notices.append(_passed_over("foreign_answers", judge, elsewhere.height, answers.height, told))
        known = known.join(films, on="image_id", how="semi", maintain_order="left")
    return known, notices


def _passed_over(code: str, judge: str, count: int, of: int, what: str) -> Notice:
    message = f"{judge}: of its {several(of, 'answer')} {several(count, 'is', 'are')} about {what}: passed over"
    return Notice(code=code, count=count, message=message)
