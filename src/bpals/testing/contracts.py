"""The contracts of what gives a table: a source, a metadata judge, a signal; and a tiny dataset to run them on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from bpals.errors import ContractBroken
from bpals.findings import Vocabulary
from bpals.types import IMAGES, Dataset, RecordJudge, claims_schema, judgments_schema, signal_schema

PAIR = ["image_id", "finding"]
ANSWER = ["outcome", "p_present", "p_low", "p_high"]


def tiny_dataset(
    *,
    patients: int = 12,
    longest: int = 4,
    findings: Sequence[str] = ("Effusion", "Nodule", "Mass"),
    uncertain: float = 0.0,
    silent: float = 0.0,
    seed: int = 0,
) -> Dataset:
    """Make up a dataset: patients with one to `longest` images, findings that mostly stay, a share open or silent."""
    draw = np.random.default_rng(seed)
    vocabulary = Vocabulary(name="tiny", findings=tuple(findings))
    films = [(patient, order) for patient in range(patients) for order in range(1 + patient % longest)]
    who = np.array([patient for patient, _ in films], dtype=np.int64)
    images = pl.DataFrame(
        {
            "image_id": [f"{patient:04}_{order:03}.png" for patient, order in films],
            "patient_id": [f"p{patient:04}" for patient, _ in films],
            "follow_up": [order for _, order in films],
            "view": np.where(draw.random(len(films)) < 0.4, "AP", "PA"),
            "age": 20.0 + draw.integers(0, 60, max(patients, 1))[who],
            "sex": np.where(draw.random(max(patients, 1)) < 0.5, "F", "M")[who],
        },
        schema_overrides={name: kind for name, kind in IMAGES.items() if name in {"image_id", "patient_id"}},
    )
    missing = [pl.lit(None, kind).alias(name) for name, kind in IMAGES.items() if name not in images.columns]
    has = draw.random((max(patients, 1), len(findings)))[who] < 0.3
    says = np.where(has ^ (draw.random(has.shape) < 0.1), "present", "absent")
    fate = draw.random(has.shape)
    says = np.where(fate < silent, "", np.where(fate < silent + uncertain, "uncertain", says))
    row, column = np.nonzero(says != "")
    claims = pl.DataFrame(
        {
            "image_id": images["image_id"].gather(row),
            "finding": pl.Series([vocabulary.findings[place] for place in column], dtype=pl.String),
            "says": pl.Series(says[row, column].tolist(), dtype=pl.String),
        }
    )
    return Dataset(
        name="tiny",
        title="A tiny dataset (made up)",
        vocabulary=vocabulary,
        images=images.with_columns(missing).select(IMAGES.names()).cast(IMAGES),
        claims=claims.cast(claims_schema(vocabulary)),
        attribution="Made up.",
        inputs={},
    )


def check_source(dataset: Dataset) -> None:
    """Check what a source gives: every image once, every label once, about an image that there is, in order."""
    images, claims = dataset.images, dataset.claims
    _has_schema("images", images, IMAGES)
    _has_schema("claims", claims, claims_schema(dataset.vocabulary))
    require(not images["image_id"].has_nulls(), "images: an image has no image_id")
    _none(images.filter(images["image_id"].is_duplicated()), ["image_id"], "images: this image stands there twice")
    _none(images.filter(~pl.col("age").is_between(0, 150)), ["image_id", "age"], "images: an age that nobody has")
    _none(claims.filter(pl.any_horizontal(pl.all().is_null())), claims.columns, "claims: a label has a hole")
    _none(claims.filter(claims.select(PAIR).is_duplicated()), PAIR, "claims: this pair is labelled twice")
    _none(claims.join(images, on="image_id", how="anti"), PAIR, "claims: the image of this label is not in the images")
    rows = images.select("image_id", row=pl.int_range(pl.len()))
    placed = claims.join(rows, on="image_id", how="left", maintain_order="left")
    place = placed["row"] * len(dataset.vocabulary.findings) + placed["finding"].to_physical().cast(pl.Int64)
    late = claims.filter((place.diff() <= 0).fill_null(value=False))
    _none(late, PAIR, "claims: not in the order of the images and the vocabulary; out of place")
    for name, written in dataset.inputs.items():
        whole = re.fullmatch(r"sha256:[0-9a-f]{64}", written)
        require(whole is not None, f"inputs: {name} has {written!r} where its sha256 belongs")
    require(bool(dataset.name and dataset.title), "the dataset has no name or no title")
    require(all(count >= 0 for count in dataset.unaudited.values()), "unaudited: a count is negative")


def check_record_judge(judge: RecordJudge, dataset: Dataset, *, claims: int = 20, seed: int = 0) -> None:
    """Check a metadata judge: whole answers, the same ones twice, and the flip test on some labels, one at a time.

    A flipped label must not move the answer about itself by a bit; other answers may move, for them it is evidence.
    Half of the sampled labels are of presence, half of absence, as far as there are any.
    """

    def read(labels: pl.DataFrame) -> pl.DataFrame:
        return judge.read(dataset.images, labels, dataset.vocabulary)

    answers = read(dataset.claims)
    check_judgments(answers, dataset)
    require(answers.equals(read(dataset.claims)), "the judge gives other answers when it reads the same labels again")
    for chosen in sample_claims(dataset.claims, claims, seed=seed).iter_slices(1):
        after = moved(answers, read(flipped(dataset.claims, chosen)), chosen)
        if not after.is_empty():
            image_id, finding, says = chosen.row(0)
            before = answers.join(chosen, on=PAIR, how="semi")["p_present"][0]
            raise ContractBroken(
                f"the answer about ({image_id}, {finding}) moves from {before} to {after['p_present'][0]} when its "
                f"own label, {says}, is flipped: the judge sees what it judges"
            )


def check_judgments(answers: pl.DataFrame, dataset: Dataset) -> None:
    """Check a metadata judge's answers: one per label, in their order; a probability only if it answered."""
    _has_schema("judgments", answers, judgments_schema(dataset.vocabulary))
    in_order = answers.select(PAIR).equals(dataset.claims.select(PAIR))
    require(in_order, "judgments: not one answer per label in the order of the labels")
    answered, p = pl.col("outcome") == "answered", pl.col("p_present")
    rules = {
        "a probability though it did not answer, or none though it did": answered.eq_missing(p.is_not_null()),
        "a probability outside 0-1 or NaN": _in_unit("p_present", "p_low", "p_high"),
        "the interval does not hold the probability": p.is_between("p_low", "p_high").fill_null(value=True),
        "the kind of a metadata judge is 'record'": pl.col("kind") == "record",
    }
    for broken, kept in rules.items():
        _none(answers.filter(~kept.fill_null(value=False)), PAIR, f"judgments: {broken}")


def sample_claims(claims: pl.DataFrame, count: int, *, seed: int = 0) -> pl.DataFrame:
    """Draw labels to flip: half of presence and half of absence, as far as there are any."""
    drawn = []
    for says, share in (("present", (count + 1) // 2), ("absent", count // 2)):
        those = claims.filter(pl.col("says") == says)
        drawn.append(those.sample(min(share, those.height), seed=seed))
    return pl.concat(drawn)


def flipped(claims: pl.DataFrame, chosen: pl.DataFrame) -> pl.DataFrame:
    """Turn the chosen labels round: present becomes absent, absent present; the others stay."""
    marked = claims.join(chosen.select(*PAIR, flip=True), on=PAIR, how="left", maintain_order="left")
    turned = pl.col("says").cast(pl.String).replace({"present": "absent", "absent": "present"})
    says = pl.when(pl.col("flip").fill_null(value=False)).then(turned).otherwise(pl.col("says").cast(pl.String))
    return marked.with_columns(says=says.cast(claims.schema["says"])).select(claims.columns)


def moved(before: pl.DataFrame, after: pl.DataFrame, chosen: pl.DataFrame) -> pl.DataFrame:
    """Give the new answers about the chosen labels that are not the old ones to the last bit."""
    beside = after.join(chosen, on=PAIR, how="semi", maintain_order="left").join(
        before, on=PAIR, how="left", suffix="_before", maintain_order="left"
    )
    other = [pl.col(name).ne_missing(pl.col(f"{name}_before")) for name in ANSWER]
    return beside.filter(pl.any_horizontal(other)).select(after.columns)


def check_signal(signal: pl.DataFrame, claims: pl.DataFrame) -> None:
    """Check a signal: one row per label, a trust that follows from the probability, and null where nobody could say."""
    named = claims.schema["finding"]
    if not isinstance(named, pl.Enum):
        raise ContractBroken(f"claims: finding is {named}, not an Enum")
    _has_schema("signal", signal, signal_schema(tuple(named.categories)))
    made = [*PAIR, "says"]
    require(signal.select(made).equals(claims.select(made)), "signal: not one row per label, in their order")
    says = pl.col("says").cast(pl.String)
    trust, p, reasons = pl.col("trust"), pl.col("p_present"), pl.col("reasons").list
    right = pl.when(says == "present").then(p).when(says == "absent").then(1 - p)
    no_ends = pl.col("trust_low").is_null() & pl.col("trust_high").is_null()
    judged = (pl.col("answered") > 0) & ~reasons.eval(pl.element().str.starts_with("no_signal:")).list.any()
    written = reasons.eval(pl.element().str.contains(r"^[a-z_]+: \S")).list.all()
    settled = pl.col("verdict").is_not_null() & says.is_in(["present", "absent"])
    follows = "the trust is not p_present of a presence, 1 - p_present of an absence, null of an uncertain label"
    rules = {
        "a number outside 0-1 or NaN": _in_unit("p_present", "agreement", "trust", "trust_low", "trust_high"),
        follows: trust.eq_missing(right),
        "the interval does not hold the trust": trust.is_between("trust_low", "trust_high").fill_null(no_ends),
        "a probability though no judge answered, or none though one with a signal did": judged.eq_missing(
            p.is_not_null()
        ),
        "`unjudged` is the flag exactly where there is no trust, and nobody settled the label": (
            pl.col("flag") == "unjudged"
        ).eq_missing(trust.is_null() & ~settled),
        **_settled_rules(settled),
        "no reason, or one that is not `code: sentence`": (reasons.len() > 0) & written,
        "no method": pl.col("method").str.len_chars() > 0,
    }
    for broken, kept in rules.items():
        _none(signal.filter(~kept.fill_null(value=False)), made, f"signal: {broken}")
    ranked = signal.sort("review_rank")
    ranks = pl.Series("review_rank", range(1, signal.height + 1), dtype=pl.Int64)
    require(ranked["review_rank"].equals(ranks), "signal: review_rank does not run from 1 to the number of labels")
    unread = ranked.head(signal["verdict"].null_count())
    require(unread["verdict"].is_null().all(), "signal: a label that people settled is not ranked behind all others")
    unjudged = unread["trust"].tail(unread["trust"].null_count())
    require(unjudged.is_null().all(), "signal: the unjudged labels are not read last")


def _settled_rules(settled: pl.Expr) -> dict[str, pl.Expr]:
    """Say what holds of verdicts: they decide the flag, and somebody stands for them."""
    says, flag, verdict, by = (pl.col(name).cast(pl.String) for name in ("says", "flag", "verdict", "verdict_by"))
    yes, no = pl.col("readers_present"), pl.col("readers_absent")
    most = (yes + no > 1) & pl.when(verdict == "present").then(yes > no).otherwise(no > yes)
    as_read = pl.when(settled & (verdict == says)).then(pl.lit("confirmed")).when(settled).then(pl.lit("rejected"))
    return {
        "`confirmed` and `rejected` are not the flags of exactly the labels that people settled": pl.when(
            flag.is_in(["confirmed", "rejected"])
        )
        .then(flag)
        .eq_missing(as_read),
        "a verdict without who gave it, or of readers most of whom say something else": (
            verdict.is_null() == by.is_null()
        )
        & (by.ne_missing("readers") | most),
    }


def _in_unit(*names: str) -> pl.Expr:
    """Null, or a number from 0 to 1."""
    return pl.all_horizontal(pl.col(name).is_between(0, 1).fill_null(value=True) for name in names)


def _has_schema(table: str, frame: pl.DataFrame, schema: pl.Schema) -> None:
    """Compare the columns, their types and their order."""
    has = frame.schema
    wrong = [f"{n} is {has.get(n, 'missing')}, not {kind}" for n, kind in schema.items() if has.get(n) != kind]
    wrong += [f"{name} is not asked for" for name in frame.columns if name not in schema]
    require(not wrong, f"{table}: {'; '.join(wrong)}")
    require(frame.columns == schema.names(), f"{table}: the columns are not in order: {', '.join(schema.names())}")


def _none(rows: pl.DataFrame, shown: Sequence[str], broken: str) -> None:
    """Refuse rows that should not be, naming the first."""
    if not rows.is_empty():
        first = ", ".join(str(value) for value in rows.select(shown).row(0))
        more = f" and {rows.height - 1:,} more" if rows.height > 1 else ""
        raise ContractBroken(f"{broken}: ({first}){more}")


def require(kept: bool, broken: str) -> None:  # noqa: FBT001  the one thing it takes
    """Raise ContractBroken with what is broken, unless it is kept."""
    if not kept:
        raise ContractBroken(broken)
