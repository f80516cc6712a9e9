"""Which judges take part in an audit, what they answer about its dataset, and how well they tell findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from bpals.errors import UnknownName, UsageError, WorkspaceError
from bpals.judges.record import RecordJudge, fold_of
from bpals.numeric import patients
from bpals.score.skill import Scores, Yardstick
from bpals.signal.layout import Ints, LaidOut, Panel, by_finding
from bpals.signal.trust import Signal
from bpals.store.workspace import ALL_JUDGES, RECORD_JUDGE, FinishedJudge, ImageChecks, Workspace, open_image_checks
from bpals.types import SKILL, Dataset, JudgeCard, Notice, Reference

ANSWER = pl.Schema({"image_id": pl.String(), "finding": pl.String(), "outcome": pl.String(), "p_present": pl.Float64()})
"""The columns of a judge's table that an audit uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The judges of one audit: the metadata judge, and finished image judges."""

    record: RecordJudge | None
    finished: tuple[FinishedJudge, ...]
    notices: tuple[Notice, ...] = ()
    checks: ImageChecks | None = None
    """The checks of the images themselves; None where no image was checked."""

    def answers_about(self, dataset: Dataset) -> tuple[Panel | None, list[Notice]]:
        """Read the image judges' answers about this dataset; None where nobody looked at an image."""
        judges, devices, notices = [], [], list(self.notices)
        if not self.finished and self.checks is None:
            return None, notices
        # Imported here, because most audits are of the metadata judge alone, and have no other answers to read.
        from bpals.signal.observations import (
            DeviceAnswers,
            read_answers,
            read_checks,
            read_devices,
            sound,
            sound_answers,
        )

        blank = None if self.checks is None else self.checks.table.filter(pl.col("blank"))
        for judge in self.finished:
            kept, strange = sound_answers(judge.name, _columns(judge, judge.answers()), dataset, blank)
            notices += strange
            answers = read_answers(judge.name, kept, dataset.images, dataset.vocabulary.findings)
            trained = judge.card.get("trained_on_target") == "yes" and not judge.card.get("held_out")
            judges.append(replace(answers, model=str(judge.card.get("model") or ""), trained=trained))
            notices += [_was_trained(judge.name)] if trained else []
            if (films := judge.film_answers()) is not None:
                its = _columns(judge, films.rename({"topic": "finding"}, strict=False))
                kept, strange = sound(judge.name, its)
                notices += strange
                kept = kept.rename({"finding": "topic"})
                devices.append(DeviceAnswers(judge=judge.name, answers=kept, offsets=judge.offsets))
        panel = Panel(
            judges=tuple(judges),
            fold=self._fold(dataset.images) if judges else np.zeros(0, dtype=np.int64),
            devices=read_devices(dataset.images, devices),
            checks=None if self.checks is None else read_checks(dataset.images, self.checks.table),
        )
        return panel, notices

    def _fold(self, images: pl.DataFrame) -> Ints:
        """Give the metadata judge's fold of each image; without that judge all images are in one fold."""
        if self.record is None:
            return np.zeros(images.height, dtype=np.int64)
        return fold_of(patients(images).to_numpy().astype(np.str_), self.record.folds)

    def entries(self, signal: Signal) -> list[dict[str, Any]]:
        """Write down each judge: its card, its counts, its skill and its weight."""
        entries = [] if self.record is None else [self.record.card.as_dict()]
        for judge in self.finished:
            # A card of an older version may lack a field: the defaults come first, and are overwritten.
            defaults = JudgeCard(judge=judge.name, kind="image", version="").as_dict() | {"fingerprint": ""}
            facts = {"judge": judge.name, "kind": "image", "sealed": judge.sha256, "counts": judge.record["counts"]}
            entries.append(defaults | judge.card | facts)
        for entry in entries:
            its = signal.skill.filter(pl.col("judge") == entry["judge"]).drop("judge")
            shares = signal.shares.get(entry["judge"], {})
            entry["effective_weight"] = signal.weights.get(entry["judge"], 0.0)
            entry["skill"] = [{**row, "weight": shares.get(row["finding"])} for row in its.iter_rows(named=True)]
        return entries


def choose(home: Workspace, wanted: str | Sequence[str]) -> Chosen:
    """Find the judges by name; `all` means the metadata judge and every finished one."""
    names = [name.strip() for name in wanted.split(",")] if isinstance(wanted, str) else list(wanted)
    names, checks = list(dict.fromkeys(filter(None, names))), open_image_checks(home.path)
    if not names:
        raise UsageError(f"--judges names no judge. Type: --judges {RECORD_JUDGE}, or leave it out to use all")
    if names == [ALL_JUDGES]:
        finished = tuple(home.judges())
        return Chosen(record=RecordJudge(), finished=finished, notices=tuple(_unfinished(home)), checks=checks)
    known = [RECORD_JUDGE, *home.judge_names()]
    for name in names:
        if name not in known:
            raise UnknownName.of("judge", name, known, where=f"--judges, in {home.path}")
    finished = tuple(home.judge(name) for name in names if name != RECORD_JUDGE)
    return Chosen(record=RecordJudge() if RECORD_JUDGE in names else None, finished=finished, checks=checks)


def without_signal(signal: Signal, findings: Sequence[str]) -> list[Notice]:
    """Say for which findings an image judge has no signal; the metadata judge is the start that the others correct."""
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


def _unfinished(home: Workspace) -> list[Notice]:
    return [
        Notice(
            code="unsealed_judge",
            count=1,
            message=f"{name} was left out: its answers in {home.path} are not complete. "
            "Run it to its end with bpals judge run",
        )
        for name in home.unfinished_judges()
    ]


def _columns(judge: FinishedJudge, table: pl.DataFrame) -> pl.DataFrame:
    """Take the columns that an audit uses; a table without one of them is refused, and a word becomes null."""
    if lacking := [name for name in ANSWER if name not in table.columns]:
        raise WorkspaceError(
            f"{judge.path / judge.name}.parquet has no column {', '.join(map(repr, lacking))}. "
            f"Run {judge.name} again (bpals judge run), or leave it out with --judges"
        )
    return table.select(pl.col(name).cast(dtype, strict=False) for name, dtype in ANSWER.items())
