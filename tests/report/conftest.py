"""A small dataset with its signal: forty patients, three findings, a judge that now and then disagrees."""

import dataclasses

import numpy as np
import polars as pl
import pytest

import bpals
from bpals.findings import Vocabulary
from bpals.report.page import Page
from bpals.score.intervals import Resampling
from bpals.testing import tiny_film
from bpals.types import DEVICES, FLAG, IMAGES, SAYS, SETTLED_COLUMNS, Dataset, Notice, claims_schema, signal_schema
from world import made_judges

FINDINGS = ("Effusion", "Nodule", "Pleural_Thickening")
ATTACK = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&{{ 7*7 }}"
"""A text that tries to break out of a page."""


def make_images(patients=40, longest=30):
    """Films of patients with one to a few films each; the first patient has the most."""
    rows = []
    for patient in range(patients):
        films = longest if patient == 0 else 1 + patient % 4
        rows += [
            {
                "image_id": f"film_{patient:03}_{order:03}.png",
                "patient_id": f"p{patient}",
                "study_id": None,
                "follow_up": order,
                "view": ("PA", "AP")[(patient + order) % 2],
                "age": float(20 + patient % 60),
                "sex": ("M", "F")[patient % 2],
                "width_px": None,
                "height_px": None,
            }
            for order in range(films)
        ]
    return pl.DataFrame(rows, schema=IMAGES)


def make_dataset(images, says, findings=FINDINGS, title="A small dataset (made up)"):
    """Claims from a table of words, one row a film and one column a finding; an empty word is silence."""
    vocabulary = Vocabulary(name="small", findings=tuple(findings))
    rows = [
        (image_id, finding, word)
        for image_id, words in zip(images["image_id"], says, strict=True)
        for finding, word in zip(findings, words, strict=True)
        if word
    ]
    return Dataset(
        name="small",
        title=title,
        vocabulary=vocabulary,
        images=images,
        claims=pl.DataFrame(rows, schema=claims_schema(vocabulary), orient="row"),
        attribution="Made up for a test.",
        inputs={"films.csv": "sha256:" + "ab" * 32},
        unaudited={"Hernia": 3},
        notices=(Notice(code="age_impossible", count=1, message="1 age above 120 years was read as unknown."),),
    )


def make_signal(dataset, seed=0):
    """A signal that a judge might have given: mostly with the claim, here and there against it."""
    claims, rng = dataset.claims, np.random.default_rng(seed)
    says = claims["says"].cast(pl.String).to_numpy()
    n = len(claims)
    p = np.where(says == "present", rng.beta(5, 2, n), rng.beta(1, 9, n))
    trust = pl.Series(np.where(says == "present", p, 1 - p))
    certain = pl.Series(says != "uncertain")
    trust = pl.select(pl.when(certain).then(trust))[:, 0]
    doubt = (1 - trust).fill_null(-1)
    flag = pl.select(
        pl.when(doubt < 0).then(pl.lit("unjudged"))
        .when(doubt > 0.7).then(pl.lit("likely_mislabelled"))
        .when(doubt > 0.5).then(pl.lit("suspect"))
        .when(doubt > 0.4).then(pl.lit("hard"))
        .otherwise(pl.lit("trusted"))
    )[:, 0]  # fmt: skip
    alone, against = "alone: no other film of this patient", "timeline_against: absent on the films before and after"
    return pl.DataFrame(
        {
            "image_id": claims["image_id"],
            "finding": claims["finding"],
            "says": claims["says"],
            "p_present": p,
            "trust": trust,
            "trust_low": (trust - 0.05).clip(0, 1),
            "trust_high": (trust + 0.05).clip(0, 1),
            "agreement": np.ones(n),
            "answered": pl.Series(np.ones(n), dtype=pl.Int32),
            "flag": flag.cast(FLAG),
            **{name: pl.Series([None], dtype=kind).new_from_index(0, n) for name, kind in SETTLED_COLUMNS.items()},
            "reasons": pl.Series([[against], [against, alone]]).gather(np.arange(n) % 2),
            "review_rank": (-doubt).rank("ordinal").cast(pl.Int64),
            "devices": pl.Series(["unknown"] * n, dtype=DEVICES),
            "film_checks": pl.Series([None], dtype=pl.List(pl.String)).new_from_index(0, n),
            "method": pl.Series(["record-1"] * n, dtype=pl.String),
        },
        schema=signal_schema(dataset.vocabulary.findings),
    )


def make_flags(findings=FINDINGS, basis="calibrated"):
    """The rules and shares of a run record; without expert knowledge there is no share."""
    known = basis != "none"
    stated = {
        "likely_mislabelled": {"labels": 5, "wrong": 0.84, "low": 0.7, "high": 0.93},
        "trusted": {"labels": 20, "wrong": 0.12, "low": 0.07, "high": 0.2},
    }
    shares = {
        says: {"labels": 25, "share": 0.61 + at / 10, "low": 0.5 + at / 10, "high": 0.7 + at / 10}
        for at, says in enumerate(("present", "absent"))
    }
    cuts = {"basis": basis, "trusted_from": 0.8 if known else None, "words": f"by the basis {basis}"}
    rules = {
        finding: {
            says: cuts | {"stated": stated if known else {}, "confirmed": shares[says] if known else None}
            for says in shares
        }
        for finding in findings
    }
    whole = {
        says: {"flags": stated if known else {}, "confirmed": share if known else None}
        for says, share in shares.items()
    }
    return {"flags": rules, "stated": whole, "prior": PRIOR if basis == "calibrated" else None}


PRIOR = {
    "name": "made-up-1",
    "labels": 13514,
    "images": 2862,
    "truth": "what most radiologists who see this image alone would say, not what the patient has",
    "terms": "research and education",
    "commercial_use": "no",
    "citations": [],
    "findings": {"Effusion": {"labels": 448, "presences": 12, "errors": 42, "views": {"PA": 448}}},
    "extrapolates": {"views": {"AP": ["Effusion"]}, "few_presences": ["Effusion"]},
}


def make_run(**changes):
    """A run record with everything that an audit writes."""
    card = {
        "judge": "record",
        "kind": "record",
        "version": "1",
        "fingerprint": "record:9f8e",
        "trained_on_target": "yes",
        "evidence": "cross-fitted by patient",
        "licence": "Apache-2.0",
        "settings": {"folds": 5},
    }
    run = {
        "bpals": "0.1.0",
        "command": "bpals audit --workspace here",
        "source": {"name": "small", "title": "A small dataset", "inputs": {"films.csv": "sha256:" + "ab" * 32}},
        "values": {
            "workspace": {"value": "here", "given": "passed", "reason": ""},
            "seed": {"value": 0, "given": "defaulted", "reason": "the same input gives the same bytes"},
        },
        "commit": "3f2c9e1b",
        "dirty": True,
        "packages": {"numpy": "2.4.6"},
        "judges": [card],
        "calibration": None,
        **make_flags(),
        "notices": [{"code": "odd", "count": 1, "message": "1 odd thing was read on from."}],
        "seconds": 41.3,
    }
    return run | changes


SKILL = {
    "finding": "Pleural_Thickening", "against": "claims", "n": 22433, "positives": 734, "auroc": 0.7889, "low": 0.766,
    "high": 0.81, "signal": True, "weight": 0.6,
}  # fmt: skip
CHANCE = {"finding": "Mass", "auroc": 0.51, "low": 0.4, "high": 0.6, "signal": False, "weight": 0.0}
TOO_FEW = {"finding": "Hernia", "auroc": None, "low": None, "high": None, "signal": False, "weight": None}


def make_judge(**changes):
    """An entry of run.json for an image judge."""
    entry = {
        "judge": "eye", "kind": "image", "version": "1", "model": "some/model", "revision": "abc123",
        "engine": "llama", "pack": "cxr@1", "preparation": {"side": 512}, "settings": {}, "trained_on_target": "no",
        "evidence": "so it says",
        "licence": "CC-BY-NC-4.0", "commercial_use": "no", "fingerprint": "sha256:77", "sealed": "sha256:88",
        "counts": {"answered": 900, "refused": 100}, "effective_weight": 0.25,
        "skill": [SKILL, SKILL | CHANCE, SKILL | TOO_FEW],
    }  # fmt: skip
    return entry | changes


CALIBRATION = {
    "reference": "four-findings",
    "split": "val",
    "pairs": 120,
    "images": 118,
    "findings": {"Nodule or mass": {"n": 120, "errors": 9, "design": "logit, claim"}},
    "method": "ridge logistic regression",
}


def make_scores(findings=("Effusion", "pooled")):
    """Rows of a scorecard as `bpals score --json` gives them."""
    rows = []
    for finding in findings:
        for given in ("all", "present", "absent"):
            for place, method in enumerate(("oracle", "bpals", "cleanlab", "prevalence", "random")):
                row = {"reference": "four-findings", "split": "test", "finding": finding, "given": given}
                row |= {"method": method, "n": 1962, "errors": 102, "ece": 0.03, "brier": 0.05}
                row |= {"ece_low": 0.02, "ece_high": 0.04, "brier_low": 0.04, "brier_high": 0.06}
                for figure in ("error_auroc", "error_ap", "found_05", "found_10", "found_20"):
                    value = 1 - 0.2 * place
                    row |= {figure: value, f"{figure}_low": max(0, value - 0.1), f"{figure}_high": min(1, value + 0.1)}
                rows.append(row)
    return rows


RELIABILITY = [
    {
        "reference": "four-findings",
        "split": "test",
        "finding": "Effusion",
        "given": "all",
        "bins": [{"p_mean": p, "rate": p, "n": 100, "low": p - 0.05, "high": p + 0.05} for p in (0.2, 0.5, 0.9)],
    }
]


@pytest.fixture(scope="session")
def dataset():
    """Forty patients; every third label of the first finding is on."""
    images = make_images()
    words = [("present" if i % 3 == 0 else "absent", "absent", "present" if i % 7 == 0 else "absent")
             for i in range(len(images))]  # fmt: skip
    return make_dataset(images, words)


@pytest.fixture(scope="session")
def signal(dataset):
    """Its signal."""
    return make_signal(dataset)


@pytest.fixture(scope="session")
def page(dataset, signal):
    """What an audit shows that started from an expert calibration."""
    return Page(dataset=dataset, signal=signal, groups=None, run=make_run())


@pytest.fixture(scope="session")
def pictured_page(page):
    """The same where the workspace knows its images: every third is broken, and every fifth is not at hand."""

    def read_images(image_ids):
        pictures = [tiny_film(seed=at).png if at % 3 else "the file is truncated" for at in range(len(image_ids))]
        return {name: each for at, (name, each) in enumerate(zip(image_ids, pictures, strict=True)) if at % 5}

    return dataclasses.replace(page, read_images=read_images)


@pytest.fixture(scope="session")
def ranked_page(dataset, signal):
    """What an audit shows without any expert knowledge: every label is unverified, or hard."""
    flag = pl.when(pl.col("flag") == "hard").then(pl.lit("hard")).otherwise(pl.lit("unverified"))
    run = make_run(**make_flags(basis="none"))
    return Page(dataset=dataset, signal=signal.with_columns(flag=flag.cast(FLAG)), groups=None, run=run)


@pytest.fixture(scope="session")
def calibrated_page(dataset, signal):
    """What an audit shows that was calibrated, has groups and was scored."""
    groups = signal.filter(pl.col("finding") == "Nodule").with_columns(
        finding=pl.lit("Nodule or mass").cast(pl.Enum(["Nodule or mass"]))
    )
    rules = make_flags((*FINDINGS, "Nodule or mass"), basis="certified")
    run = make_run(calibration=CALIBRATION, judges=[*make_run()["judges"], make_judge()], **rules)
    return Page(dataset=dataset, signal=signal, groups=groups, run=run, scores=make_scores(), reliability=RELIABILITY)


@pytest.fixture(scope="session")
def patientless_page(dataset):
    """What an audit of a dataset shows that names no patient, age, sex or view, and has uncertain and silent pairs."""
    bare = dataset.images.with_columns(
        pl.lit(None).alias(name).cast(IMAGES[name]) for name in ("patient_id", "follow_up", "view", "age", "sex")
    )
    words = [("present", "uncertain", "") if i % 2 else ("absent", "present", "absent") for i in range(len(bare))]
    nameless = make_dataset(bare, words)
    return Page(dataset=nameless, signal=make_signal(nameless), groups=None, run=make_run())


@pytest.fixture(scope="session")
def hostile_page():
    """What an audit shows when every text of the dataset tries to break out of the page."""
    attack = ATTACK
    images = make_images(patients=6, longest=3).with_columns(
        pl.concat_str("image_id", pl.lit(attack)).alias("image_id"),
        pl.concat_str("patient_id", pl.lit(attack)).alias("patient_id"),
        pl.concat_str("view", pl.lit(attack)).alias("view"),
        pl.concat_str("sex", pl.lit(attack)).alias("sex"),
    )
    findings = tuple(f"{attack}{i}" for i in range(3))
    words = [("present", "absent", "uncertain") for _ in range(len(images))]
    dataset = make_dataset(images, words, findings=findings, title=attack)
    dataset = dataclasses.replace(
        dataset, attribution=attack, inputs={attack: attack}, unaudited={attack: 1}, notices=()
    )
    signal = make_signal(dataset).with_columns(
        reasons=pl.lit([f"{attack}: {attack}"]), flag=pl.lit("suspect").cast(FLAG)
    )
    run = make_run(
        **make_flags(findings),
    ) | {
        "command": attack,
        "commit": attack,
        "packages": {attack: attack},
        "judges": [dict.fromkeys(make_run()["judges"][0], attack)],
        "values": {attack: {"value": attack, "given": attack, "reason": attack}},
        "notices": [{"code": attack, "count": 1, "message": attack}],
        "prior": {**PRIOR, **dict.fromkeys(("name", "truth", "terms"), attack), "findings": {attack: {"labels": 1}}},
        "calibration": {
            **CALIBRATION,
            "reference": attack,
            "method": attack,
            "findings": {attack: {"n": 1, "errors": 0}},
        },
    }
    scores = [{**row, "finding": attack, "reference": attack} for row in make_scores(("x",))]
    return Page(dataset=dataset, signal=signal, groups=None, run=run, scores=scores)


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """What the page of a comparison shows: a table judge and a stub with all six outcomes, made-up films, experts."""
    folder = made_judges.make_workspace(tmp_path_factory.mktemp("compared") / "mine")
    tokens = {"prompt": 600_000, "cached": 500_000, "output": 3600}
    tally = {"films": 600, "attempts": 3700, "tokens": tokens, "seconds": 1200.0}
    drift = {"questions": 20, "compared": 20, "mean": 0.012, "largest": 0.055, "other_outcome": 0, "beyond": 0}
    made_judges.seal_stub(folder, tally=tally, drift=drift)
    few = Resampling(draws=100)
    found = bpals.compare("sharp", "stub", workspace=folder, reference=made_judges.EXPERTS, resampling=few).as_dict()
    pictures = [tiny_film().png, "the file is truncated", None, *(tiny_film(seed=seed).png for seed in range(1, 10))]
    shown = enumerate(zip(found["films"], pictures, strict=True), 1)
    return found | {"films": [{**film, "place": place, "picture": picture} for place, (film, picture) in shown]}


@pytest.fixture(scope="session")
def hostile_comparison(comparison):
    """The same when every text in it tries to break out of the page."""
    judges = {comparison["a"]: f"a{ATTACK}", comparison["b"]: f"b{ATTACK}"}

    def spoil(value):
        if isinstance(value, dict):
            return {name: spoil(each) for name, each in value.items()}
        if isinstance(value, list):
            return [spoil(each) for each in value]
        if not isinstance(value, str) or value in ("labels", "mean"):
            return value
        return judges.get(value, f"{value}{ATTACK}")

    return spoil(comparison)


@pytest.fixture
def small():
    """The makers, for a test that needs a dataset of its own."""
    return Makers()


class Makers:
    """How to make a small dataset, its signal and its page."""

    images = staticmethod(make_images)
    dataset = staticmethod(make_dataset)
    signal = staticmethod(make_signal)
    run = staticmethod(make_run)
    flags = staticmethod(make_flags)
    judge = staticmethod(make_judge)
    scores = staticmethod(make_scores)
    reliability = RELIABILITY
    findings = FINDINGS
    says = SAYS

    @staticmethod
    def page(dataset, signal=None, **changes):
        """The page of a dataset."""
        made = make_signal(dataset) if signal is None else signal
        run = make_run(**make_flags(dataset.vocabulary.findings))
        return Page(dataset=dataset, signal=made, groups=None, run=run, **changes)
