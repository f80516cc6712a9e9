"""The film checks, measured on altered copies of real films: what each finds, and what it flags that nobody altered.

    python benchmarks/film_checks.py --images FOLDER            everything; some ten minutes on two cores
    python benchmarks/film_checks.py --images FOLDER altered    one part: altered, real, scale or ocr

FOLDER is what `--images` of `bpals judge run` takes; the films are NIH's. What a backbone saw of them is kept in
`--workspace`, so that a second run begins at once. Copies are made of the decoded film and written as JPEG; each is
judged as a film of its patient's, by lines that never saw the patient. The exit code is 1 if a promise is broken: each
check alone finds 95 % of its copies and flags no more than 1 % of the films that nobody altered.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from PIL import Image, ImageDraw, ImageFont
from threadpoolctl import threadpool_limits

from bpals.errors import install_line
from bpals.images.checks import ONE_GREY, Gallery, Twins, find_twins, one_grey
from bpals.images.collection import open_index
from bpals.images.defects import CHECKS, COPIES, Detection, detect
from bpals.images.ocr import Lettered, Lettering
from bpals.images.prepare import decode
from bpals.images.stream import THUMBNAIL_PX, FeatureSpec, ImageFeatures
from bpals.judges.backbone import DEFAULT, open_backbone
from bpals.report.tallies import wilson
from bpals.sources import nih
from bpals.store.features import FeatureCache, StoredFeatures
from bpals.store.workspace import Workspace
from bpals.tasks.image_checks import ExtractedImages, check_images, gallery_of, sample_of
from bpals.tasks.probe import EXTRACTOR, run_probe
from bpals.types import Refusal

FILMS, NIH_FILMS, DRAWS = 1000, 112_120, 1000
LEAST_RECALL, MOST_ALARMS = 0.95, 0.01
LARGE, LARGE_PX = "cropped, of 1024 px", 1000
DOUBLED = 0.9
"""The size of a film under another name, beside its own."""

SEEN_TURNED = """
00000632_003 00001170_015 00001255_007 00001255_010 00001880_006 00002117_004 00002265_000 00002451_012
00002599_004 00003081_000 00006763_012 00007098_003 00008168_008 00008980_003 00009600_020 00010531_041
00010597_000 00010994_010 00011757_005 00012681_003 00012935_022 00013594_050 00014285_013 00014439_000
00015040_002 00015920_006 00016182_000 00016287_000 00016435_000 00016831_003 00017007_002 00017158_024
00017325_007 00017556_005 00017779_000 00017824_000 00017964_001 00018276_000 00018577_000 00019395_010
00019470_001 00019473_002 00019665_001 00020826_008 00021068_000 00021160_000 00021299_001 00021916_007
00022463_000 00023684_002 00026986_007 00027539_001 00029358_004
"""
SEEN_INVERTED = "00017625_000 00017999_000"
SEEN_LATERAL = """
00000517_001 00000591_003 00000732_007 00000966_000 00001085_000 00001104_011 00001136_001 00001153_005 00008445_003
"""
"""What one of us, no radiologist, saw on the films that were flagged. Others were not looked at."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The films, and what was seen of them."""

    extracted: ExtractedImages
    gallery: Gallery

    def extractor(self) -> Callable[[bytes], ImageFeatures | Refusal]:
        """Extract the features of a film in this process."""
        return self.extracted.feature_spec.begin()

    def films(self, image_ids: list[str]) -> Iterator[tuple[str, Image.Image]]:
        """Decode films."""
        for name, content in self.extracted.index.read(image_ids):
            if isinstance(content, Refusal):
                raise TypeError(f"{name}: {content.message}")
            yield name, decode(content).image

    @property
    def large(self) -> pl.DataFrame:
        """The films that are here as NIH ships them."""
        return self.gallery.table.filter(pl.col("width_px") >= LARGE_PX)

    def drawn(self, count: int) -> pl.DataFrame:
        """Draw films of as many patients, the same ones each time."""
        places = self.gallery.table.with_row_index("place")
        return places.sample(fraction=1, shuffle=True, seed=14).unique("patient", maintain_order=True).head(count)


def written(image: Image.Image, quality: int = 95) -> bytes:
    """Write a film as a JPEG."""
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def doubled(image: Image.Image) -> bytes:
    """Write a film at 90 % of its size."""
    sides = [round(side * DOUBLED) for side in image.size]
    return written(image.resize((sides[0], sides[1]), Image.Resampling.LANCZOS), quality=85)


def emptied(image: Image.Image, which: int) -> bytes:
    """Leave next to nothing of a film: one grey, noise around one grey, a marker alone, 3 % of its contrast."""
    draw = np.random.default_rng(which)
    grey = int(draw.integers(0, 256))
    empty = Image.new("L", image.size, grey)
    if which % 4 == 1:
        noise = draw.normal(grey, 4, image.size[::-1])
        empty = Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8))
    elif which % 4 == 2:
        ImageDraw.Draw(empty).text((8, 8), "L", fill=255 - grey, font=ImageFont.load_default(24))
    elif which % 4 == 3:
        empty = image.point([100 + round(value * 0.03) for value in range(256)])
    return written(empty)


class Joined:
    """The features of all films, and after them those of copies."""

    def __init__(self, films: StoredFeatures, count: int, copies: Floats) -> None:
        """Take both."""
        self._films, self._count, self._copies, self.width = films, count, copies, films.width

    def rows(self, start: int, stop: int) -> Floats:
        """Give some of them."""
        mine = self._films.rows(min(start, self._count), min(stop, self._count)).astype(np.float32)
        copies = self._copies[max(start - self._count, 0) : max(stop - self._count, 0)]
        return np.concatenate([mine, copies])


@dataclass(slots=True)
class Made:
    """Altered copies that were looked at."""

    kinds: list[str] = field(default_factory=list)
    films: list[int] = field(default_factory=list)
    """Of which film each copy is, by its place."""
    features: list[Floats] = field(default_factory=list)
    thumbnails: list[npt.NDArray[np.uint8]] = field(default_factory=list)

    def put(self, kind: str, film: int, seen: ImageFeatures | Refusal) -> None:
        """Keep a copy."""
        if isinstance(seen, Refusal):
            raise TypeError(seen.message)
        self.kinds.append(kind)
        self.films.append(film)
        self.features.append(seen.features)
        self.thumbnails.append(seen.thumbnail)

    def of(self, kind: str) -> npt.NDArray[np.int64]:
        """Find the copies of a kind."""
        return np.flatnonzero(np.array(self.kinds) == kind)


def altered(bench: Bench) -> bool:
    """Measure each check alone on altered copies, and on all films that nobody altered."""
    drawn, gallery, extract = bench.drawn(FILMS)["image_id"].to_list(), bench.gallery, bench.extractor()
    count, place = gallery.table.height, {name: at for at, name in enumerate(gallery.table["image_id"])}
    made, empty = Made(), 0
    for which, (name, image) in enumerate(bench.films(drawn)):
        for kind, alter in COPIES.items():
            made.put(kind, place[name], extract(written(alter(image))))
        made.put("doubled", place[name], extract(doubled(image)))
        nothing = extract(emptied(image, which))
        empty += isinstance(nothing, Refusal) or one_grey(nothing.thumbnail[None])[0] >= ONE_GREY
    for name, image in bench.films(bench.large["image_id"].to_list()):
        made.put(LARGE, place[name], extract(written(COPIES["cropped"](image))))
    sample = sample_of(gallery, bench.extracted)
    assert sample is not None  # noqa: S101  a thousand patients are enough
    stored = bench.extracted.cache.features(gallery.table["image_id"].to_list())
    fold = np.concatenate([gallery.fold, gallery.fold[made.films]])
    with threadpool_limits(1):
        said = detect(Joined(stored, count, np.stack(made.features)), fold, sample)
    print(
        f"\nCopies of {len(drawn):,} films of as many patients; {count:,} films that nobody altered; each check alone"
    )
    print("\n| check | copies found | recall (95 %) | films flagged | of all (95 %) |\n|---|---|---|---|---|")
    kept = [_row("blank", empty, len(drawn), int(gallery.blank.sum()), count)]
    kept += _detected(said, made, count)
    kept.append(_doubled(gallery, made))
    _beside(said, made, count)
    return all(kept)


def _detected(said: Detection, made: Made, count: int) -> list[bool]:
    kept = []
    for check, its in CHECKS.items():
        flagged = said.checks[check].score > 0
        alarms = int(flagged[:count].sum())
        for kind in (*its, LARGE) if check == "cropped" else its:
            copies = made.of(kind)
            kept.append(_row(kind.replace("_", " "), int(flagged[count + copies].sum()), len(copies), alarms, count))
    return kept


def _beside(said: Detection, made: Made, count: int) -> None:
    """Say whether the degrees are right, and on how many copies of another kind each check fires."""
    right = [said.degrees[count + made.of(kind)] == int(kind.partition("_")[2]) for kind in CHECKS["turned"]]
    print(f"\nThe degrees are right on {np.mean(right):.4f} of the turned copies.")
    for check, its in CHECKS.items():
        fires = {
            kind: (said.checks[check].score[count + made.of(kind)] > 0).mean() for kind in COPIES if kind not in its
        }
        print(f"{check} fires on other copies: {', '.join(f'{kind} {share:.3f}' for kind, share in fires.items())}")


def _doubled(gallery: Gallery, made: Made) -> bool:
    """Put each film in under a second name, and see who is called whose twin."""
    count, copies = gallery.table.height, made.of("doubled")
    every = np.concatenate([gallery.thumbnails, np.stack(made.thumbnails)[copies]])
    usable = np.concatenate([~gallery.blank, np.ones(len(copies), dtype=bool)])
    twins, alone = find_twins(every, usable), find_twins(gallery.thumbnails, ~gallery.blank)
    found = twins.other[count:] == np.array(made.films)[copies]
    kept = _row("doubled", int(found.sum()), len(copies), int((alone.other >= 0).sum()), count)
    least, most = twins.correlation[count:][found].min(), _most_alike(gallery, alone)
    print(f"\nThe least alike copy that was found has a correlation of {least:.4f} with its film; of films not "
          f"flagged the two most alike have {most:.4f}.")  # fmt: skip
    return kept


def _most_alike(gallery: Gallery, twins: Twins) -> float:
    """Give the largest correlation between two films that are not called twins, by comparing every pair."""
    flat = gallery.thumbnails[twins.other < 0].reshape(-1, THUMBNAIL_PX**2).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    most = 0.0
    for start in range(0, len(flat), 1000):
        alike = flat[start : start + 1000] @ flat[start:].T
        most = max(most, float(np.triu(alike, k=1).max()))
    return most


def _row(name: str, found: int, copies: int, alarms: int, films: int) -> bool:
    recall, share = found / copies, alarms / films
    low, high = wilson(recall, copies)
    least, most = wilson(share, films)
    print(f"| {name} | {found:,} of {copies:,} | {recall:.4f} ({low:.4f} to {high:.4f}) | {alarms:,} | "
          f"{share:.4f} ({least:.4f} to {most:.4f}) |")  # fmt: skip
    return recall >= LEAST_RECALL and share <= MOST_ALARMS


def real(bench: Bench) -> bool:
    """Say what is flagged among the films that nobody altered, and what was seen on those films by eye."""
    report = check_images(Workspace(bench.extracted.cache.path.parents[1]), bench.extracted)
    table = report.sealed.table
    print(f"\n{report.sentence}\n")
    print("| check | films flagged | seen to be so by eye | not so | not looked at |\n|---|---|---|---|---|")
    known = {"turned": _ids(SEEN_TURNED), "inverted": _ids(SEEN_INVERTED)}
    wrong = {"turned": {"00001179_001.png"}, "inverted": set()}
    for check, seen in known.items():
        flagged = set(table.filter(pl.col("checks").list.contains(check))["image_id"])
        rest = flagged - seen - wrong[check]
        print(f"| {check} | {len(flagged)} | {len(flagged & seen)} | {len(flagged & wrong[check])} | {len(rest)} |")
    _laterals(table)
    _views(bench, table)
    pairs = table.filter(pl.col("near_duplicate_of").is_not_null())
    own = pairs["same_patient"].sum()
    print(f"\nNear-duplicates: {pairs.height} films, {own} of them beside one of their own patient.")
    return True


def _ids(names: str) -> set[str]:
    return {f"{name}.png" for name in names.split()}


def _laterals(table: pl.DataFrame) -> None:
    """Say where the films stand that were seen to be lateral, among all films by how unlike the others they are."""
    ranked = table.with_columns(rank=pl.col("unlike").rank("ordinal", descending=True))
    its = ranked.filter(pl.col("image_id").is_in(list(_ids(SEEN_LATERAL)))).sort("rank")
    flagged = table.filter(pl.col("checks").list.contains("unlike")).height
    views = dict(its["view"].value_counts().iter_rows())
    print(f"\nUnlike the others: {flagged} films flagged. {its.height} that were seen to be lateral (recorded as "
          f"{', '.join(f'{view}: {count}' for view, count in views.items())}) stand at "
          f"{', '.join(str(rank) for rank in its['rank'])} of {table.height:,}.")  # fmt: skip


def _views(bench: Bench, table: pl.DataFrame) -> None:
    """Print the AUROC of the view that films look like against the recorded one, patients drawn whole."""
    score, ap = table["view_score"].to_numpy(), (table["view"] == "AP").to_numpy()
    patient = np.unique(bench.gallery.table["patient"].to_numpy().astype(np.str_), return_inverse=True)[1]
    draw, values = np.random.default_rng(0), []
    order = np.argsort(score, kind="stable")
    among = int(patient.max()) + 1
    for _ in range(DRAWS):
        weight = np.bincount(draw.integers(0, among, among), minlength=among)[patient]
        values.append(_auroc(ap[order], weight[order].astype(float)))
    low, high = np.quantile(values, [0.025, 0.975])
    flagged = table.filter(pl.col("checks").list.contains("view")).height
    print(f"\nView: AUROC {_auroc(ap[order], np.ones(len(ap))):.4f} ({low:.4f} to {high:.4f}) against the record, "
          f"{len(ap):,} films, {ap.sum():,} of them AP; {flagged} flagged.")  # fmt: skip


def _auroc(ap: npt.NDArray[np.bool_], weight: npt.NDArray[np.float64]) -> float:
    """Give the weighted AUROC of films in ascending order."""
    below = np.cumsum(weight * ~ap)
    return float((weight * ap * below).sum() / ((weight * ap).sum() * below[-1]))


def scale(bench: Bench) -> bool:
    """Time the search for near-duplicates over as many films as NIH has: real ones, mirrored, shifted, lit anew."""
    draw = np.random.default_rng(0)
    films = bench.gallery.thumbnails.astype(np.float32)
    parts = [films]
    while sum(map(len, parts)) < NIH_FILMS:
        moved = np.roll(films, tuple(draw.integers(-5, 6, 2)), axis=(1, 2))[:, :, :: int(draw.choice([-1, 1]))]
        haze = np.kron(draw.normal(0, 14, (len(films), 4, 4)), np.ones((8, 8)))
        parts.append(np.clip(moved * draw.uniform(0.7, 1.1) + haze, 0, 255))
    many = np.concatenate(parts)[:NIH_FILMS].astype(np.uint8)
    print("\n| films | near-duplicates, CPU s |\n|---|---|")
    for count in (bench.gallery.table.height, NIH_FILMS // 2, NIH_FILMS):
        began = time.process_time()
        with threadpool_limits(1):
            find_twins(many[:count], np.ones(count, dtype=bool))
        print(f"| {count:,} | {time.process_time() - began:.1f} |")
    return True


def ocr(bench: Bench) -> bool:
    """Measure what reading costs on the largest films, and whether words burnt into them are found."""
    if find_spec("rapidocr_onnxruntime") is None:
        print(f"\nNo OCR here: {install_line('ocr')}")
        return True
    large = bench.large
    read, views = Lettering().begin(), dict(large.select("image_id", "view").iter_rows())
    spent, marked, agree, text, found = 0.0, 0, 0, 0, 0
    for name, content in bench.extracted.index.read(list(views)):
        if isinstance(content, Refusal):
            continue
        began = time.process_time()
        plain = read(content)
        spent += time.process_time() - began
        image = decode(content).image
        ImageDraw.Draw(image).text((60, 900), "answer: no disease", fill=255, font=ImageFont.load_default(36))
        burnt = read(written(image))
        if isinstance(plain, Lettered) and isinstance(burnt, Lettered):
            marked, agree = marked + (plain.view is not None), agree + (plain.view == views[name])
            text, found = text + plain.text, found + burnt.text
    low, high = wilson(found / large.height, large.height)
    print(f"\nOCR: {large.height} films of 1024 px, {spent / large.height:.2f} CPU s a film "
          f"({NIH_FILMS * spent / large.height / 3600:.0f} core-hours for all of NIH).\n"
          f"{marked} have markers that name a view, {agree} of them the recorded one; text beside markers on {text}.\n"
          f"With a sentence burnt in: text found on {found} ({low:.2f} to {high:.2f}).")  # fmt: skip
    return True


PARTS: dict[str, Callable[[Bench], bool]] = {"altered": altered, "real": real, "scale": scale, "ocr": ocr}


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="altered, real, scale, ocr; by default all")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--workspace", type=Path, default=Path(".cache/film-checks"))
    parser.add_argument("--backbone", default=DEFAULT)
    given = parser.parse_args()
    backbone = open_backbone(given.backbone)
    cache = FeatureCache(given.workspace, backbone.name, backbone.sha256, backbone.width)
    if not cache.path.exists():
        run_probe(f"probe:{given.backbone}", images=given.images, workspace=given.workspace, say=print)
    images = nih.load().images
    extracted = ExtractedImages(
        images=images,
        index=open_index(given.images, images["image_id"].to_list()),
        feature_spec=FeatureSpec(side_px=backbone.side_px, extractor=EXTRACTOR, given={"named": given.backbone}),
        cache=cache,
    )
    bench = Bench(extracted=extracted, gallery=gallery_of(extracted))
    kept = [PARTS[name](bench) for name in given.parts or PARTS]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
