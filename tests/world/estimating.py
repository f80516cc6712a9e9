"""The whole signal in one call, for tests: lay out, measure, estimate."""

from dataclasses import dataclass, field

import polars as pl

from bpals.signal import trust
from bpals.signal.layout import Panel, groups_of, lay_out
from bpals.tasks.chosen_judges import measure
from bpals.types import SKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPanel(Panel):
    """A panel whose skill a test decides: judge -> findings where it has a signal; a judge not named has it on all."""

    used: dict = field(default_factory=dict)

    def skill(self, laid):
        """Make the skill of every judge, the metadata judge first."""
        rows = [
            (judge, name, "claims", 9, 3, 0.8, 0.7, 0.9, name in self.used.get(judge, level.record.findings))
            for level in laid.levels
            for judge in ("record", *(its.name for its in level.judges))
            for name in level.record.findings
        ]
        return pl.DataFrame(rows, schema=SKILL, orient="row")


def laid_out(dataset, judgments, panel=None, **more):
    """Lay out, and mark where each judge is used."""
    laid = lay_out(dataset, judgments, panel, **more)
    return laid, None if panel is None else panel.skill(laid) if isinstance(panel, MeasuredPanel) else measure(laid)


def used_judges(dataset, judgments, panel):
    """Give the panel's judges with where they are used."""
    laid, skill = laid_out(dataset, judgments, panel)
    return laid.findings.with_used(skill).judges


def estimate(dataset, judgments, reference=None, *, panel=None, reviews=None, group_judgments=None, groups=(), **more):
    """Estimate the signal of a dataset; `groups` are those of a prior."""
    groups = list(dict.fromkeys([*groups_of(dataset.vocabulary, reference, reviews), *groups]))
    laid, skill = laid_out(dataset, judgments, panel, groups=groups, group_judgments=group_judgments)
    return trust.estimate(laid, reference, skill=skill, reviews=reviews, **more)
