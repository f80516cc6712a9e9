"""What is registered keeps its contract, and what does not is told what is broken."""

from dataclasses import dataclass, replace

import pytest

from bpals.errors import ContractBroken
from bpals.judges.record import RecordJudge as MetadataJudge
from bpals.judges.stub import make
from bpals.registry import EXPORTS, JUDGES, SIGNALS, SOURCES, option
from bpals.reviews.exchange import Films, Written
from bpals.testing import check_export, check_kind, check_source, tiny_reviews
from bpals.types import ImageJudge, RecordJudge, Signal, Source
from world import review_tables

EVERY = [kind for registry in (JUDGES, SOURCES, SIGNALS, EXPORTS) for kind in registry.every()]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: f"{type(kind).__name__} {kind.name}")
def test_every_declaration_keeps_its_contract(kind):
    """Ours are checked as anybody's are."""
    check_kind(kind)


@pytest.mark.parametrize(
    "kind", [kind for kind in EXPORTS.every() if kind.needs != "files"], ids=lambda kind: kind.name
)
def test_every_format_keeps_its_contract(kind):
    """Written, recognised and read back."""
    check_export(kind)


def test_dicom_reports_keep_the_contract_of_a_format():
    """They are a folder, and need the images themselves."""
    pytest.importorskip("highdicom")
    check_export(EXPORTS.load("dicom-sr"), Films(dicom=lambda _image_id: review_tables.dicom()))


def test_the_protocols_fit_what_is_registered():
    """A declaration of a source is a Source, and so on."""
    assert isinstance(SOURCES.load("nih"), Source)
    assert isinstance(SIGNALS.load("judges-2"), Signal)
    assert isinstance(make("7"), ImageJudge)
    assert isinstance(MetadataJudge(), RecordJudge)


def test_a_source_is_loaded_through_the_registry():
    """The embedded record needs no target."""
    check_source(SOURCES.load("nih").load(""))


@dataclass(frozen=True, kw_only=True)
class Taken:
    """An option that every judge has."""

    seed: int = option(0, "Of mine.")


@dataclass(frozen=True, kw_only=True)
class Otherwise:
    """An option that another kind reads as text."""

    device: int = option(0, "Which one.")


@dataclass(kw_only=True)
class Thawed:
    """Options that could change."""


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"summary": ""}, "no summary"),
        ({"form": "other:X"}, "does not begin with its name"),
        ({"extra": "vlm"}, "named together"),
        ({"options": Taken}, "seed is an option of every judge"),
        ({"options": Otherwise, "open": lambda *_given, **_options: None}, "device is of another type"),
        ({"options": JUDGES.load("table").options}, "which its `open` does not take"),
        ({"options": Thawed}, "no frozen dataclass"),
    ],
)
def test_a_broken_declaration_is_told_what_is_broken(change, broken):
    """One line each."""
    with pytest.raises(ContractBroken, match=broken):
        check_kind(replace(JUDGES.load("stub"), **change))


CSV = EXPORTS.load("csv")


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"write": lambda _table, _films: b""}, "not Written"),
        ({"write": lambda _table, _films: Written(files={})}, "nothing is written"),
        ({"write": lambda _table, _films: Written(files={"": "text"})}, "not bytes"),
        ({"write": lambda _table, _films: Written(files={"": b"", "b": b""})}, "no other"),
        ({"write": lambda _table, _films: Written(files={"../b": b""})}, "leave the folder"),
        ({"write": lambda table, films: CSV.write(table.head(3), films)}, "of 12 reads 3 come back"),
    ],
)
def test_a_broken_format_is_told_what_is_broken(change, broken):
    """One line each."""
    with pytest.raises(ContractBroken, match=broken):
        check_export(replace(CSV, **change))


def test_made_up_reviews_are_reviews():
    """Every verdict, two readers, and boxes."""
    made = tiny_reviews()
    assert made["reader"].n_unique() == 2
    assert made["verdict"].n_unique() == 4
    assert made["box"].count() > 0
