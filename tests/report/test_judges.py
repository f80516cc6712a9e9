"""The judges of the page: every one listed, with what it is worth, in words that do not overstate it."""

import polars as pl
import pytest

from bpals.report.page import devices, judges, render
from bpals.types import DEVICES
from world.words import mentions


def test_a_judge_is_told_in_full(small):
    """Coverage, signal, weight, licence, training, and a row a finding."""
    (judge,) = judges([small.judge()])
    assert judge.answered == "900 (90.0\N{NO-BREAK SPACE}%)"
    assert judge.signal == "1 of 3"
    assert judge.weight == "25.0\N{NO-BREAK SPACE}%"
    assert mentions(judge.title, "image judge", "version 1", "CC-BY-NC-4.0", "no commercial use")
    assert mentions(judge.trained, "not trained")
    assert dict(judge.facts)["revision"] == "abc123"
    first, second, third = judge.skill
    assert first[:5] == ("Pleural Thickening", "the dataset's labels", "22,433", "734", "0.789")
    assert first[6:] == ("signal", "0.60")
    assert second[6] == "no signal"
    assert third[4:] == ("—", "—", "too few to tell", "—")


def test_a_judge_that_was_told_the_labels_is_told_from_one_that_was_told_others(small):
    """Trained on these labels it weighs less; of other patients only, it does not."""
    told, apart = judges([small.judge() | {"trained_on_target": "yes", "held_out": held} for held in (False, True)])
    assert mentions(told.trained, "was trained", "less")
    assert mentions(apart.trained, "was trained", "other patients")


def test_what_a_record_leaves_out_is_shown_as_left_out():
    """An audit of an older bpals, or a card with holes, still has a page."""
    (judge,) = judges([{"judge": "old", "kind": "image"}])
    assert (judge.answered, judge.signal, judge.weight, judge.skill) == ("—", "—", "—", ())
    assert mentions(judge.trained, "not known")
    assert mentions(judge.title, "image judge", "version not stated", "licence not stated")
    assert judges([]) == ()


def test_the_page_lists_every_judge_with_its_skill(dataset, signal, small):
    """The section stands in the contents too; a judge with a weight makes the page speak of judges."""
    run = small.run(judges=[*small.run()["judges"], small.judge()])
    page = render(small.page(dataset, signal).__class__(dataset=dataset, signal=signal, groups=None, run=run))
    shown = ("Judge: record", "Judge: eye", "AUROC of eye", "too few to tell", "sha256:77")
    for words in ('href="#judges"', 'id="judges"', *shown):
        assert words in page, words
    assert "the judges contradict" in page
    assert "No pixel" not in page


@pytest.mark.parametrize(("weight", "words"), [(0.0, "No pixel counts."), (0.3, None)])
def test_a_judge_that_is_not_heeded_is_no_eye(dataset, signal, small, weight, words):
    """Where no image judge moves a trust the page does not claim that films were read."""
    run = small.run(judges=[*small.run()["judges"], small.judge(effective_weight=weight)])
    page = render(small.page(dataset, signal).__class__(dataset=dataset, signal=signal, groups=None, run=run))
    assert ("No image judge has a signal" in page) == (weight == 0)
    assert words is None or words in page


def test_films_with_devices_are_counted_once_each(signal):
    """A film has many claims and one state; where nobody was asked there is no figure."""
    assert devices(signal) is None
    films = signal["image_id"].unique(maintain_order=True)
    word = pl.when(pl.col("image_id") == films[0]).then(pl.lit("present")).when(
        pl.col("image_id").is_in(films[1:4].implode())).then(pl.lit("absent")).otherwise(pl.lit("unknown"))  # fmt: skip
    found = devices(signal.with_columns(devices=word.cast(DEVICES)))
    assert found == {"present": 1, "absent": 3, "unknown": len(films) - 4}
