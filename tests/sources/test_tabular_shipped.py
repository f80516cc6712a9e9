"""The shipped mappings read the real tables, and every count is known."""

import re
import time
from pathlib import Path

import polars as pl
import pytest

from bpals.errors import SourceError
from bpals.sources import tabular

TABLES = {
    "chexpert": "chexpert_train.csv.gz",
    "padchest": "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv.gz",
    "vindr": "vinbigdata-train.csv.gz",
}


@pytest.fixture(scope="module")
def datasets(xrv_tables):
    """The three datasets, each with the seconds it took."""
    loaded = {}
    for name, file in TABLES.items():
        start = time.perf_counter()
        loaded[name] = (tabular.load(xrv_tables / file, name), time.perf_counter() - start)
    return loaded


def counts(dataset, finding):
    """Films that say present, absent, uncertain, and nothing."""
    says = dataset.claims.filter(pl.col("finding") == finding)["says"].to_list()
    spoken = [says.count(word) for word in ("present", "absent", "uncertain")]
    return (*spoken, dataset.images.height - sum(spoken))


@pytest.mark.parametrize(
    ("name", "films", "patients", "claims"),
    [("chexpert", 223_414, 64_540, 827_441), ("padchest", 160_861, 67_625, 2_007_550), ("vindr", 15_000, 1, 195_000)],
)
def test_every_film_of_the_real_table_is_there(datasets, name, films, patients, claims):
    """Films, patients and claims are counted; VinDr names no patient."""
    dataset, _ = datasets[name]
    assert dataset.images.height == films
    assert dataset.images["image_id"].is_unique().all()
    assert dataset.images["patient_id"].n_unique() == patients
    assert dataset.claims.height == claims


@pytest.mark.parametrize(
    ("name", "finding", "expected"),
    [
        ("chexpert", "Pneumothorax", (19_448, 56_341, 3_145, 144_480)),
        ("chexpert", "Support Devices", (116_001, 6_137, 1_079, 100_197)),
        ("chexpert", "Pleural Other", (3_523, 316, 2_653, 216_922)),
        ("padchest", "pneumothorax", (573, 142_234, 0, 18_054)),
        ("padchest", "atelectasis", (8_961, 134_951, 0, 16_949)),
        ("padchest", "hiatal hernia", (2_363, 140_537, 0, 17_961)),
        ("vindr", "Pneumothorax", (58, 14_904, 38, 0)),
        ("vindr", "Aortic enlargement", (2_346, 11_933, 721, 0)),
    ],
)
def test_what_the_real_table_says_of_a_finding(datasets, name, finding, expected):
    """Present, absent, uncertain and silent are kept apart."""
    assert counts(datasets[name][0], finding) == expected


def test_chexpert_is_counted_as_the_file_has_it(datasets, xrv_tables):
    """For every audited column the four counts are those of 1, 0, -1 and blank in the file itself."""
    dataset, _ = datasets["chexpert"]
    file = pl.read_csv(xrv_tables / TABLES["chexpert"])
    for finding in dataset.vocabulary.findings:
        column = file[finding]
        raw = [(column == value).sum() for value in (1, 0, -1)]
        assert counts(dataset, finding) == (*raw, column.null_count())
    assert dataset.unaudited == {"No Finding": 22_381}
    assert dataset.notices == ()


def test_chexpert_finds_patient_study_and_view(datasets):
    """They hide in the path, and the view in either of two columns."""
    images = datasets["chexpert"][0].images
    assert images.row(3, named=True) | {"image_id": ""} == {
        "image_id": "",
        "patient_id": "patient00002",
        "study_id": "patient00002/study1",
        "follow_up": 1,
        "view": "Lateral",
        "age": 83.0,
        "sex": "F",
        "width_px": None,
        "height_px": None,
    }
    assert images["study_id"].n_unique() == 187_641
    assert images["view"].null_count() == 0


def test_padchest_is_counted_as_the_file_has_it(datasets, xrv_tables):
    """A film carries a finding if one of its spellings stands between quotes in the list."""
    dataset, _ = datasets["padchest"]
    cells = pl.read_csv(xrv_tables / TABLES["padchest"], columns=["Labels"])["Labels"]
    for finding, spellings in {
        "cardiomegaly": "cardiomegaly",
        "nodule": "nodule|multiple nodules",
        "pneumothorax": "pneumothorax|hydropneumothorax",
        "pulmonary mass": "pulmonary mass|mass",
    }.items():
        assert counts(dataset, finding)[0] == cells.str.contains(f"' *({spellings}) *'").sum()
    assert dataset.unaudited["COPD signs"] == cells.str.contains("' *COPD signs *'").sum()
    assert len(dataset.unaudited) == 154


def test_padchest_is_silent_where_nobody_looked(datasets, xrv_tables):
    """A film that is only `unchanged`, excluded or without labels makes no claim."""
    dataset, _ = datasets["padchest"]
    file = pl.read_csv(xrv_tables / TABLES["padchest"], columns=["ImageID", "Labels"])
    silent = file.filter(
        pl.col("Labels").is_in(["['unchanged']", "['exclude']", "['suboptimal study']", "['']", "nan"])
    )
    assert silent.height == 3_584 + 1_284 + 387 + 777 + 103
    assert dataset.claims.join(silent, left_on="image_id", right_on="ImageID", how="semi").is_empty()
    assert {notice.code: notice.count for notice in dataset.notices} == {
        "contradiction": 155,
        "unread": 17_380,
        "unlabelled": 777,
    }


def test_padchest_knows_date_and_age(datasets):
    """The date becomes days, the birth year an age; a film without a birth year has none."""
    images = datasets["padchest"][0].images
    assert images["follow_up"].null_count() == 0
    assert images["age"].null_count() == 6
    assert (images["age"].min(), images["age"].max()) == (0, 105)
    assert images["sex"].value_counts(sort=True).rows() == [("M", 80_920), ("F", 79_919), ("O", 18), (None, 4)]


def test_vindr_is_counted_as_the_file_has_it(datasets, xrv_tables):
    """The majority of three, counted from the rows by other means."""
    dataset, _ = datasets["vindr"]
    rows = pl.read_csv(xrv_tables / TABLES["vindr"]).select("image_id", "rad_id", "class_name").unique()
    votes = rows.group_by("image_id", "class_name").len()
    for finding in dataset.vocabulary.findings:
        marked = votes.filter(pl.col("class_name") == finding)["len"]
        some = (int((marked >= 2).sum()), 15_000 - len(marked), int((marked == 1).sum()), 0)
        assert counts(dataset, finding) == some
    assert dataset.unaudited == {"Other lesion": 1_134}


def test_the_table_in_the_docs_is_true(datasets):
    """Each figure of docs/sources.md is what the mapping gives."""
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
    for name, (dataset, _) in datasets.items():
        line = re.search(rf"^\|`{name}`\|(.*)\|$", page, re.MULTILINE)
        told = [int(cell.replace(",", "").replace("none named", "1")) for cell in line[1].split("|")]
        says = [(dataset.claims["says"] == word).sum() for word in ("present", "absent", "uncertain")]
        audited = len(dataset.vocabulary.findings)
        silent = dataset.images.height * audited - sum(says)
        patients = dataset.images["patient_id"].n_unique()
        assert told[1:] == [dataset.images.height, patients, audited, *says, silent, len(dataset.unaudited)]


def test_a_large_table_loads_in_a_few_seconds(datasets):
    """Generous here, because the machine may be busy: each takes about 2 s alone."""
    for name, (_, seconds) in datasets.items():
        assert seconds < 15, name


def test_a_mapping_for_another_table_is_refused(xrv_tables):
    """It says which table it is for, and how to go on."""
    with pytest.raises(SourceError, match=r"'Path'.*CheXpert .*--mapping"):
        tabular.load(xrv_tables / TABLES["vindr"], "chexpert")
