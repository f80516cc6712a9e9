"""The report as text; test_browser.py looks at it in a browser."""

import dataclasses
import html.parser
import re
import time

import numpy as np
import polars as pl
import pytest

from bpals.findings import NIH
from bpals.report.page import EXAMPLES, NAMES, devices, judges, odd_films, render
from bpals.signal.observations import CHECK_WORDS
from bpals.types import DEVICES, FLAG, IMAGES, Dataset, claims_schema
from world.words import mentions

VOID = {"meta", "link", "br", "rect", "circle", "line", "path"}


class Skeleton(html.parser.HTMLParser):
    """Reads a page and keeps its open elements, its ids, its links and its text."""

    def __init__(self, page):
        """Read the whole page at once."""
        super().__init__()
        self.open, self.ids, self.targets, self.words = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """Note what is opened."""
        if tag not in VOID:
            self.open.append(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.targets += [found["href"]] if tag == "a" else []

    def handle_startendtag(self, tag, attrs):
        """An element that closes itself leaves nothing open."""

    def handle_endtag(self, tag):
        """What is closed must be what was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Keep what a reader reads."""
        if self.open and self.open[-1] not in {"style", "title", "desc"}:
            self.words.append(data)

    @property
    def text(self):
        """The words of the page, with plain blanks."""
        return re.sub(r"\s+", " ", " ".join(self.words))


PAGES = ["page", "ranked_page", "calibrated_page", "patientless_page", "hostile_page"]


@pytest.fixture(params=PAGES)
def skeleton(request):
    """Each kind of report, read."""
    return Skeleton(render(request.getfixturevalue(request.param)))


def read(page):
    """The text of a report."""
    return Skeleton(render(page)).text


@pytest.mark.quick
def test_every_element_is_closed(skeleton):
    """The page is well formed, whatever is in it."""
    assert skeleton.open == []


@pytest.mark.quick
def test_every_inner_link_has_a_target(skeleton):
    """The list of sections names sections that are there, and nothing links to elsewhere."""
    assert skeleton.targets
    assert {target.removeprefix("#") for target in skeleton.targets} <= set(skeleton.ids)
    assert len(skeleton.ids) == len(set(skeleton.ids))


@pytest.mark.quick
@pytest.mark.parametrize("name", PAGES)
def test_the_page_asks_nobody_for_anything(name, request):
    """No script, no style or picture from elsewhere, and a policy that forbids them."""
    page = render(request.getfixturevalue(name))
    policy = "default-src &#39;none&#39;; style-src &#39;unsafe-inline&#39;; img-src data:"
    assert policy.replace("&#39;", "'") in page
    assert not re.search(r"<script|<img|<iframe|<object|@import|url\(|\son\w+=[\"']", page)
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', page) == ["data:,"]


@pytest.mark.quick
def test_texts_of_the_dataset_cannot_break_out(hostile_page):
    """Names of findings, films, patients, judges, values and files are text, never markup or template."""
    page = render(hostile_page)
    assert "<script>" not in page
    assert "onerror=alert(2)>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "{{ 7*7 }}" in page


@pytest.mark.quick
def test_the_headline_has_the_figures_that_matter(page):
    """Films, patients, claims and the shares of the flags."""
    text = read(page)
    signal = page.signal
    presences = signal.filter(pl.col("says") == "present")
    assert mentions(text, f"Of {len(presences)}", "A small dataset", "readers would confirm 61.0")
    assert mentions(text, "on images like the 2,862 that were read, which are enriched")
    assert f"images {len(page.dataset.images)}" in text
    assert "patients 40" in text
    assert f"labels audited {len(signal)}" in text


@pytest.mark.quick
def test_sections_come_in_the_order_of_a_reader(page):
    """From what was audited to what to type next."""
    order = [
        "audited",
        "trust",
        "spread",
        "who",
        "suspects",
        "reading",
        "experts",
        "judges",
        "limits",
        "origin",
        "next",
    ]
    assert Skeleton(render(page)).ids == order


@pytest.mark.quick
def test_without_expert_knowledge_labels_are_ranked_only(ranked_page):
    """No share, no trusted, no suspect: the lowest trusts to look at, and how to get knowledge."""
    text = read(ranked_page)
    assert "No expert label was used" in text
    assert mentions(text, "labels of A small dataset are ranked", "nobody knows yet")
    assert "The least trusted labels" in text
    assert "Calibrate on expert labels you have" in text
    for claim in ("Calibrated on experts", "readers would", "likely mislabelled", "suspect 0 %", "trusted 0 %"):
        assert claim not in text, claim
    assert 'href="#who"' not in render(ranked_page)
    lowest = ranked_page.signal.filter(pl.col("says") == "present").sort("trust")["image_id"][0]
    assert lowest in text


@pytest.mark.quick
def test_the_page_says_what_the_truth_is_and_where_it_extrapolates(page):
    """By the name of the calibration; and that only a random sample gives a rate."""
    text = read(page)
    assert mentions(text, "The truth here is what most radiologists who see this image alone would say")
    assert mentions(text, "made-up-1", "13,514 expert labels", "2,862 images", "research and education")
    assert mentions(text, "It extrapolates to AP images of Effusion and 1 finding of which few presences were read")
    assert mentions(text, "no error rate of the dataset", "bpals rate")
    assert "No expert label was used" not in text


@pytest.mark.quick
def test_every_finding_has_the_share_that_readers_would_reject(page, small):
    """One less what they would confirm, with the interval turned; a dash where nobody knows."""
    assert mentions(read(page), "Effusion", "39.0 % 30.0\N{EN DASH}50.0 %", "29.0 % 20.0\N{EN DASH}40.0 %")
    rules = small.flags()
    rules["flags"]["Nodule"]["present"] = {"basis": "none", "confirmed": None, "stated": {}}
    some = read(dataclasses.replace(page, run=small.run(**rules)))
    assert re.search(r"Nodule \d+ —", some)


@pytest.mark.quick
def test_a_flag_states_the_share_of_wrong_labels(page, ranked_page):
    """As the trusts have it, with its interval; without expert knowledge there is none."""
    assert mentions(read(page), "by their trusts wrong: 84.0 % of the presences (70.0\N{EN DASH}93.0 %)")
    assert "by their trusts wrong" not in read(ranked_page)


@pytest.mark.quick
def test_with_expert_labels_the_page_says_which(calibrated_page):
    """Reference, split and labels; their images may be drawn at random, so they are not called enriched."""
    text = read(calibrated_page)
    assert mentions(text, "120 expert labels", "four-findings", "split: val")
    assert mentions(text, "on images like the 118 that were read, which may be enriched")
    assert "Nodule or mass" in text
    assert "groups.parquet" in text
    assert "No expert label was used" not in text
    assert "Calibrate on expert" not in text


@pytest.mark.quick
def test_what_changed_since_the_last_audit_is_said(page, ranked_page):
    """Calibration, reads and shares; nothing of an audit that cannot be compared."""
    shares = {"present": {"labels": 25, "share": 0.4, "low": 0.2, "high": 0.6}, "absent": None}
    before = {"version": "1", "reads": 3, "prior": None, "confirmed": shares}

    def told(page, **changes):
        return read(dataclasses.replace(page, run={**page.run, "history": [before | changes]}))

    text = told(page)
    assert mentions(text, "Calibration: made-up-1 (was none)", "Single reads used: 0 (were 3)")
    assert mentions(text, "61.0 %", "of the presences; it was 40.0 %")
    same = {says: entry["confirmed"] for says, entry in page.run["stated"].items()}
    assert mentions(told(page, prior="made-up-1", reads=0, confirmed=same), "Nothing that this page states")
    assert "another flag" not in text
    assert "it was 40.0" not in told(ranked_page)
    assert "Since the last audit" not in read(page)
    old = {**page.run, "history": [{"version": "1", "reads": 3}]}
    assert "Since the last audit" not in read(dataclasses.replace(page, run=old))


@pytest.mark.quick
def test_labels_with_another_flag_are_counted_by_flag_and_finding(page):
    """The finding that moved most comes first, with the share that readers would confirm before and now."""
    before = {"version": "1", "reads": 0, "prior": None, "confirmed": {"present": None, "absent": None}}
    findings = {"Effusion": {"flag": 2, "confirmed": 0.4}, "Nodule": {"flag": 40, "confirmed": None}}
    moved = {"labels": 300, "flag": 42, "flags": {"trusted": [10, 52], "unverified": [290, 248]}, "findings": findings}
    run = {**page.run, "history": [before], "changed": moved}
    text = read(dataclasses.replace(page, run=run))
    assert mentions(text, "Another flag: 42 of 300 labels (14.0 %)", "moved most: Nodule (40) and Effusion (2)")
    assert mentions(text, "Nodule 40 \N{EM DASH} 61.0 %", "Effusion 2 40.0 % 61.0 %")
    still = moved | {"flag": 0, "findings": {}}
    assert "No label has another flag" in read(dataclasses.replace(page, run=run | {"changed": still}))


@pytest.mark.quick
def test_a_page_with_images_says_so_and_one_without_has_none(page, pictured_page):
    """Whoever mails the page should know that pixels are in it."""
    shown, bare = render(pictured_page), render(page)
    assert "<img" in shown
    assert re.search(r"holds \d+.small images of the dataset", shown)
    assert "It is not shown: the file is truncated." in shown
    assert "bpals review serve --workspace here</code>" in shown
    assert "<img" not in bare
    assert "small image" not in bare
    assert "bpals review serve --workspace here --images FOLDER" in bare


@pytest.mark.quick
def test_what_to_do_next_can_be_typed(page):
    """A name with blanks is quoted; a rate is asked of one finding, because reads are counted per finding."""
    values = {**page.run["values"], "workspace": {"value": "my audit", "given": "passed", "reason": ""}}
    text = read(dataclasses.replace(page, run={**page.run, "values": values}))
    assert mentions(text, 'bpals.load_signal("my audit")', "bpals review next --workspace 'my audit' --n 50")
    assert mentions(text, "bpals rate plan --workspace 'my audit' --findings Effusion --reads 200 --out reads.csv")


@pytest.mark.quick
def test_a_record_of_an_older_version_claims_nothing(page):
    """Its flags were shares, and say nothing of how many labels are wrong."""
    old = {**page.run, "flags": {"Effusion": {"present": {"words": "fixed", "likely_below": 0.3}}}}
    assert "readers would confirm" not in read(dataclasses.replace(page, run=old))


@pytest.mark.quick
def test_the_scorecard_is_a_section_where_there_is_one(page, calibrated_page):
    """Rows in, section there; no rows, no section."""
    assert "Error AP" in read(calibrated_page)
    assert "Error AP" not in read(page)


@pytest.mark.quick
def test_a_dataset_without_patients_says_why_sections_are_missing(patientless_page):
    """No strip, no groups, and the reason for both."""
    rendered = render(patientless_page)
    text = Skeleton(rendered).text
    assert "The dataset names no patient" in text
    assert mentions(text, "Age, sex and view", "not stated")
    assert 'class="chart timeline"' not in rendered
    assert "does not commit itself" in text
    assert "Labelled uncertain" in text
    assert "Silent" in text


@pytest.mark.quick
def test_a_trust_is_explained_by_a_claim_of_the_dataset(page):
    """The worked example is one of the flagged claims, with its own numbers."""
    text = read(page)
    image_id, trust = re.search(r"on image (\S+) ?\. The trust is ([\d.<]+)", text).groups()
    row = page.signal.filter(pl.col("image_id") == image_id, pl.col("trust").round(2) == float(trust))
    assert row["flag"].is_in(["suspect", "likely_mislabelled"]).any()


@pytest.mark.quick
def test_provenance_names_files_values_and_versions(page):
    """Everything that is needed to make the page again."""
    text = read(page)
    for words in ("sha256:" + "ab" * 32, "3f2c9e1b", "with uncommitted changes", "numpy 2.4.6", "passed", "defaulted",
                  "Made up for a test.", "1 odd thing was read on from.", "bpals audit --workspace here"):  # fmt: skip
        assert words in text


@pytest.mark.quick
def test_the_same_audit_gives_the_same_page(page):
    """Nothing of the page comes from a clock or a dice."""
    assert render(page) == render(page)


@pytest.mark.quick
def test_an_empty_dataset_has_a_page(small):
    """No film, no claim, and one sentence that says so."""
    dataset = small.dataset(pl.DataFrame(schema=IMAGES), [])
    text = read(small.page(dataset))
    assert mentions(text, "has 0 images")
    assert "Provenance" in text
    assert "How far to trust it" not in text


@pytest.mark.quick
def test_films_without_any_claim_have_a_page(small):
    """Silence about everything is no reason to fall over."""
    images = small.images(patients=2, longest=1)
    assert "and no label." in read(small.page(small.dataset(images, [("", "", "")] * len(images))))


@pytest.mark.quick
def test_one_film_has_a_page(small):
    """The smallest audit there is, with its claim suspect and with it trusted."""
    images = small.images(patients=1, longest=1)
    dataset = small.dataset(images, [("present",)], findings=("Mass",))
    for flag in ("suspect", "trusted"):
        signal = small.signal(dataset).with_columns(flag=pl.lit(flag).cast(FLAG))
        text = read(small.page(dataset, signal))
        assert "image 1" in text
        assert ("No label was flagged" in text) == (flag == "trusted")


@pytest.mark.quick
def test_a_patient_with_thousands_of_films_has_a_page_of_usual_size(small):
    """The strip is windowed, so the page does not grow with the patient."""
    images = small.images(patients=1, longest=4000)
    dataset = small.dataset(images, [("present" if i % 9 else "absent",) for i in range(4000)], findings=("Mass",))
    rendered = render(small.page(dataset))
    assert len(rendered) < 150_000
    assert "earlier images" in Skeleton(rendered).text


@pytest.mark.quick
def test_a_claim_that_nobody_judged_is_counted_and_not_trusted(small):
    """No answer, no trust: the page says unjudged and draws nothing."""
    images = small.images(patients=3, longest=1)
    dataset = small.dataset(images, [("present", "absent", "absent")] * len(images))
    nothing = pl.lit(None, pl.Float64)
    signal = small.signal(dataset).with_columns(
        p_present=nothing, trust=nothing, trust_low=nothing, trust_high=nothing, flag=pl.lit("unjudged").cast(FLAG)
    )
    text = read(small.page(dataset, signal))
    assert "unjudged 100 %" in text
    assert "No label was flagged" in text


@pytest.mark.quick
def test_films_with_devices_are_counted_where_a_judge_was_asked(page):
    """Unknown is not a number of films."""
    assert "Images with devices" not in read(page)
    asked = page.signal.with_columns(devices=pl.lit("present").cast(page.signal.schema["devices"]))
    assert f"Images with devices {len(page.dataset.images)}" in read(dataclasses.replace(page, signal=asked))


@pytest.mark.quick
def test_a_million_and_a_half_claims_are_quick_and_small(small):
    """NIH's size: 112,120 films, 1,569,680 claims, a few seconds, a page that a phone can load."""
    films, rng = 112_120, np.random.default_rng(0)
    images = pl.DataFrame(
        {
            "image_id": [f"{i // 4:08}_{i % 4:03}.png" for i in range(films)],
            "patient_id": [str(i // 4) for i in range(films)],
            "follow_up": np.arange(films) % 4,
            "view": rng.choice(["PA", "AP"], films),
            "age": rng.integers(1, 95, films).astype(float),
            "sex": rng.choice(["M", "F"], films),
        }
    )
    images = images.with_columns(pl.lit(None).cast(IMAGES[n]).alias(n) for n in ("study_id", "width_px", "height_px"))
    findings = pl.Series(NIH.findings, dtype=NIH.enum)
    claims = images.select("image_id").join(findings.to_frame("finding"), how="cross", maintain_order="left_right")
    says = pl.Series(rng.random(len(claims)) < 0.05)
    claims = claims.with_columns(says=pl.when(says).then(pl.lit("present")).otherwise(pl.lit("absent")))
    claims = claims.cast(dict(claims_schema(NIH)))
    dataset = Dataset(
        name="nih", title="NIH", vocabulary=NIH, images=images.select(IMAGES.names()), claims=claims, attribution="",
        inputs={},
    )  # fmt: skip
    page = small.page(dataset)
    start = time.process_time()
    rendered = render(page)
    assert time.process_time() - start < 10
    assert len(rendered.encode()) < 1_500_000


@pytest.mark.quick
def test_members_of_a_group_that_nobody_read_apart_are_named(calibrated_page):
    """Their figures are their own, and rest on other findings."""
    calibration = {**calibrated_page.run["calibration"], "members": {"Nodule": "Nodule or mass"}}
    run = {**calibrated_page.run, "calibration": calibration}
    text = read(dataclasses.replace(calibrated_page, run=run))
    assert mentions(text, "Nodule: experts read them only as part of Nodule or mass")
    assert "only as part of" not in read(calibrated_page)


@pytest.mark.quick
def test_with_image_judges_a_trust_is_not_said_to_fit_the_record_alone(ranked_page, calibrated_page):
    """They have seen the film."""
    seen = dataclasses.replace(ranked_page, run={**ranked_page.run, "judges": calibrated_page.run["judges"]})
    assert mentions(read(seen), "record", "image judges see")
    assert "what image judges see" not in read(ranked_page)


def test_a_judge_is_told_in_full(small):
    """Coverage, signal, weight, licence, training, and one row per finding."""
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


LISTS = pl.List(pl.String)


def looked(signal, checks):
    """The signal after somebody looked at every film; `checks` are a list for each of the first films."""
    films = signal["image_id"].unique(maintain_order=True)
    fired = {film: checks[place] if place < len(checks) else [] for place, film in enumerate(films)}
    reasons = [[f"film_{check}: what it says" for check in fired[film]] for film in signal["image_id"]]
    column = pl.Series("film_checks", [fired[film] for film in signal["image_id"]], dtype=LISTS)
    return signal.with_columns(column, pl.Series("reasons", reasons, dtype=LISTS))


def test_nobody_looked_and_nothing_is_said(page):
    """Null is not a sound film."""
    assert odd_films(page.signal) is None
    assert "The images themselves" not in render(page)


def test_odd_films_are_counted_once_each_with_examples(page):
    """A film has a row in each claim, and is one film."""
    signal = looked(page.signal, [["turned", "unlike"], ["turned"], [], ["turned"], ["turned"], ["turned"]])
    found = odd_films(signal)
    assert found["checked"] == len(page.dataset.images)
    assert found["odd"] == 5
    assert [(name, count) for name, count, _ in found["rows"]] == [("Turned", 5), ("Unlike the others", 1)]
    assert found["rows"][0][2].count("what it says") == EXAMPLES
    text = render(dataclasses.replace(page, signal=signal))
    assert "The images themselves" in text
    assert signal["image_id"][0] in text


def test_sound_films_are_said_to_be_sound(page):
    """A part of the page without a table."""
    found = odd_films(looked(page.signal, []))
    assert (found["odd"], found["rows"]) == (0, [])


@pytest.mark.parametrize("check", CHECK_WORDS)
def test_every_check_has_a_name_on_the_page(check):
    """None is left out of the table."""
    assert check in NAMES
