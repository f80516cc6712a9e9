"""The films of a workspace are checked: from a pass over real files to the signal and the report."""

import importlib.util
import shutil

import numpy as np
import polars as pl
import pytest
from PIL import Image, ImageDraw, ImageFont

import bpals
from bpals.images.collection import open_index
from bpals.images.defects import COPIES
from bpals.images.stream import image_features
from bpals.store.features import FeatureCache
from bpals.store.workspace import CHECKS_RECORD, Workspace, write_image_checks
from bpals.tasks.image_checks import ExtractedImages, check_images
from bpals.types import FILM_CHECKS, IMAGES, Refusal
from world import dicoms, phantoms
from world.words import mentions

WRONG = {"p005": "turned_90", "p111": "inverted", "p112": "cropped", "p113": "turned_180"}


def images_of(names, **columns):
    """The record of films, each of a patient of its own unless told."""
    rows = {"image_id": names, "patient_id": [name[:4] for name in names], "view": ["PA"] * len(names), **columns}
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in IMAGES.items() if name not in rows]
    return pl.DataFrame(rows).with_columns(missing).select(IMAGES.names()).cast(IMAGES)


def look_at(folder, home, images):
    """A pass over the films of a folder, as a probe makes it."""
    index = open_index(folder, images["image_id"].to_list())
    cache = FeatureCache(home.path, "plain", "0" * 64, 153)
    with cache.writing() as writer, image_features(index, index.found, phantoms.FEATURE_SPEC, workers=0) as extracting:
        for image_id, film in extracting:
            if isinstance(film, Refusal):
                writer.refuse(image_id, film)
            else:
                writer.put(film)
    return ExtractedImages(images=images, index=index, feature_spec=phantoms.FEATURE_SPEC, cache=cache)


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A hundred and twenty films, some of them wrong, looked at and checked."""
    folder = tmp_path_factory.mktemp("films")
    films = {f"p{seed:03}": phantoms.phantom(seed) for seed in range(120)}
    for name, film in films.items():
        shown = COPIES[WRONG[name]](film) if name in WRONG else film
        (folder / f"{name}.png").write_bytes(phantoms.written(shown))
    (folder / "p020-again.jpg").write_bytes(phantoms.written(films["p020"].resize((79, 79)), "JPEG", quality=90))
    (folder / "grey.png").write_bytes(phantoms.written(Image.new("L", (64, 64), 90)))
    home = Workspace(tmp_path_factory.mktemp("home") / "audit")
    home.path.mkdir()
    seen = look_at(folder, home, images_of([*films, "p020-again", "grey"]))
    said = []
    return home, seen, check_images(home, seen, workers=0, say=said.append), said


def test_every_wrong_film_is_found_and_no_other(checked):
    """Among 122 films: by the check that is meant for it."""
    table = checked[2].sealed.table
    odd = dict(table.filter(pl.col("checks").list.len() > 0).select("image_id", "checks").iter_rows())
    pair = {"p020": ["near_duplicate"], "p020-again": ["near_duplicate"]}
    assert odd == pair | {"grey": ["blank"]} | {name: [copy.partition("_")[0]] for name, copy in WRONG.items()}
    assert table.schema == FILM_CHECKS
    assert table["image_id"].to_list() == checked[1].images["image_id"].to_list()


def test_what_was_found_is_told_and_sealed(checked):
    """The sentence, and the record with what was learnt from how many."""
    home, _, report, said = checked
    counts = ("1 blank", "1 inverted", "2 turned", "1 cropped", "2 near duplicate", "1 pair, 0 of two patients")
    assert mentions(report.sentence, "122", "not for view, unlike", *counts)
    assert any("altering copies" in sentence for sentence in said)
    record = report.sealed.record
    assert record["learnt"]["inverted"]["found"] >= 0.95 * record["learnt"]["inverted"]["copies"] > 0
    assert (record["near_duplicate_pairs"], record["pairs_of_two_patients"]) == (1, 0)
    assert (home.path / CHECKS_RECORD).exists()


def test_the_same_films_are_not_checked_twice(checked):
    """Nothing is looked at again; another film, and all are."""
    home, seen, report, _ = checked
    said = []
    again = check_images(home, seen, workers=0, say=said.append)
    assert not said
    assert again.sealed.record == report.sealed.record


def test_pairs_are_counted_once_and_films_that_cannot_be_read_are_not_checked(tmp_path):
    """Four films are copied, three of them to other patients: 8 films, 4 pairs, 3 of two patients."""
    folder = tmp_path / "films"
    folder.mkdir()
    names = [f"p{seed:03}" for seed in range(6)]
    copies = {"p000-again": "p000", "q001": "p001", "q002": "p002", "q003": "p003"}
    for name in (*names, *copies):
        film = phantoms.phantom(int(copies.get(name, name)[1:4]))
        (folder / f"{name}.png").write_bytes(phantoms.written(film))
    (folder / "cut.png").write_bytes(phantoms.written(phantoms.phantom(7))[:-100])
    (folder / "grey.png").write_bytes(phantoms.written(Image.new("L", (64, 64), 90)))
    home = Workspace(tmp_path / "audit")
    report = check_images(home, look_at(folder, home, images_of([*names, *copies, "cut", "grey"])), workers=0)
    record = report.sealed.record
    assert record["fired"]["near_duplicate"] == 8
    assert (record["near_duplicate_pairs"], record["pairs_of_two_patients"]) == (4, 3)
    assert (record["films"], record["checked"]) == (12, 11)
    assert mentions(report.sentence, "11", "1 more", "not for inverted")


def test_a_handful_of_films_is_checked_as_far_as_it_goes(tmp_path):
    """Copies and blanks are found; what must be learnt is not said, and that it is not is."""
    folder = tmp_path / "films"
    folder.mkdir()
    for name in ("p000", "p001", "p000b"):
        (folder / f"{name}.png").write_bytes(phantoms.written(phantoms.phantom(int(name[1:4]))))
    home = Workspace(tmp_path / "audit")
    report = check_images(home, look_at(folder, home, images_of(["p000", "p001", "p000b"])), workers=0)
    assert report.sealed.table["checks"].to_list() == [["near_duplicate"], [], ["near_duplicate"]]
    assert report.sealed.table["same_patient"].to_list() == [True, None, True]
    assert [notice.code for notice in report.notices] == ["few_films_to_check"]


@pytest.mark.skipif(importlib.util.find_spec("rapidocr_onnxruntime") is None, reason="no OCR here: the extra ocr")
def test_m06_text_burnt_into_a_dicom_is_flagged_whether_its_tag_says_so_or_not(tmp_path):
    """M06: BurnedInAnnotation = YES is believed; a file that says nothing is read. No word of it is kept."""
    folder = tmp_path / "films"
    folder.mkdir()
    grey = phantoms.phantom(0).resize((600, 600)).point([grey // 2 for grey in range(256)])
    named = grey.copy()
    ImageDraw.Draw(named).text((40, 30), "ROE JANE 1951", fill=255, font=ImageFont.load_default(40))
    (folder / "tagged.dcm").write_bytes(dicoms.dicom(np.asarray(grey), BurnedInAnnotation="YES"))
    (folder / "silent.dcm").write_bytes(dicoms.dicom(np.asarray(named)))
    (folder / "clean.dcm").write_bytes(dicoms.dicom(np.asarray(grey.rotate(3))))
    home = Workspace(tmp_path / "audit")
    seen = look_at(folder, home, images_of(["tagged", "silent", "clean"]))
    report = check_images(home, seen, ocr=True, workers=1)
    assert dict(report.sealed.table.select("image_id", "text").iter_rows()) == {
        "tagged": True, "silent": True, "clean": False,
    }  # fmt: skip
    flagged = report.sealed.table.filter(pl.col("checks").list.contains("text"))
    assert flagged["image_id"].to_list() == ["tagged", "silent"]
    for file in home.path.rglob("*"):
        if file.is_file():
            assert b"JANE" not in file.read_bytes().upper()


def test_an_audit_tells_what_is_odd_about_films(films_audit, tmp_path):
    """A column, a reason, a line in the record and a part of the report; the trusts are what they were."""
    home = tmp_path / "audit"
    shutil.copytree(films_audit, home)
    before = bpals.load_signal(home)
    names = before["image_id"].unique(maintain_order=True)
    rows = [{"image_id": names[0], "checks": ["turned"], "turned": 90}, {"image_id": names[1], "checks": []}]
    table = pl.DataFrame([dict.fromkeys(FILM_CHECKS) | row for row in rows], schema=FILM_CHECKS)
    write_image_checks(home, table, {"films": 2, "fired": {"turned": 1}})
    run = bpals.audit(workspace=home)
    its = dict(run.signal.unique("image_id").select("image_id", "film_checks").iter_rows())
    assert (its[names[0]], its[names[1]], its[names[2]]) == (["turned"], [], None)
    told = run.signal.filter(pl.col("image_id") == names[0])["reasons"].explode()
    assert told.str.starts_with("film_turned: ").sum() == run.signal.filter(pl.col("image_id") == names[0]).height
    assert run.signal.drop("reasons", "film_checks").equals(before.drop("reasons", "film_checks"))
    assert run.record["films"]["fired"] == {"turned": 1}
    page = run.report.read_text(encoding="utf-8")
    assert "The images themselves" in page
    assert names[0] in page
    assert (home / CHECKS_RECORD).exists()
