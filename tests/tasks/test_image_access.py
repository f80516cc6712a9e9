"""The films of a dataset as a judge is shown them: found, drawn, read, remembered."""

import dataclasses
import io
import shutil
import tarfile

import pytest
from PIL import Image

import bpals
from bpals.errors import UsageError
from bpals.store.workspace import Workspace
from bpals.tasks.image_access import REPORT_PX, STREAMED, report_images
from bpals.tasks.judge import Order, run_judge
from world import datasets
from world.datasets import ask


def test_a_limit_draws_the_same_films_again_and_a_larger_one_adds_to_them(small, tmp_path):
    """Which films come first depends on the seed alone, also when other films are missing."""
    few = ask("stub:", small, tmp_path / "few", limit_images=6)
    again = ask("stub:", small, tmp_path / "again", limit_images=6)
    more = ask("stub:", small, tmp_path / "more", limit_images=12)
    other = ask("stub:", small, tmp_path / "other", limit_images=6, seed=1)
    films = [
        set(Workspace(run.sealed.parents[1]).judge("stub").answers()["image_id"]) for run in (few, again, more, other)
    ]
    assert films[0] == films[1]
    assert films[0] < films[2]
    assert films[0] != films[3]
    fewer = tmp_path / "fewer"
    fewer.mkdir()
    for image_id in [*films[0], *(set(small.image_ids) - films[2])]:
        shutil.copy(small.images / image_id, fewer)
    ask("stub:", dataclasses.replace(small, images=fewer), tmp_path / "there", limit_images=6)
    assert set(Workspace(tmp_path / "there").judge("stub").answers()["image_id"]) == films[0]


def test_a_compressed_archive_is_read_as_it_is(small, tmp_path):
    """A tar.gz needs no unpacking, and gives the answers of the folder."""
    packed = tmp_path / "films.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(small.images, "films")
    ask("stub:", small, tmp_path / "folder", limit_images=7)
    ask("stub:", dataclasses.replace(small, images=packed), tmp_path / "new" / "tar", limit_images=7)
    tables = [Workspace(tmp_path / home).judge("stub").answers() for home in ("folder", "new/tar")]
    assert tables[0].equals(tables[1])


def test_no_film_can_be_read(tmp_path):
    """A folder of broken films is refused with the reasons counted, and nothing is sealed."""
    own = datasets.write(tmp_path, 6)
    for image_id in own.image_ids:
        (own.images / image_id).write_bytes(b"")
    with pytest.raises(UsageError, match=r"first 6 .*\(6 not_an_image\)"):
        ask("stub:", own, tmp_path / "audit")
    assert Workspace(tmp_path / "audit").judge_names() == []


def test_the_workspace_remembers_the_films_and_the_dataset(small, tmp_path, monkeypatch):
    """What is named once, also by a path from here, need not be named again, also from elsewhere."""
    monkeypatch.chdir(small.images.parent)
    home = tmp_path / "audit"
    shutil.copy(small.mapping, "here.toml")
    first = Order(source="table:films.csv", mapping="here.toml", limit_images=2, workers=0)
    run_judge("stub:", images="films", workspace=home, order=first)
    monkeypatch.chdir(tmp_path)
    again = run_judge("stub:", workspace=home, order=Order(limit_images=5, workers=0))
    assert (again.films, again.state) == (5, "done")


def test_the_report_shows_real_films_small_and_without_a_tag(data_folder, tmp_path):
    """Originals of 1,024 px, one of them in colour with transparency, become grey JPEGs of 256 px and some KB."""
    originals = data_folder / "images" / "originals"
    image_ids = sorted(file.name for file in originals.glob("*.png"))
    home = Workspace(tmp_path / "audit")
    home.remember(images=str(originals))
    found = report_images(home, [*image_ids, "nobody.png"])
    assert sorted(found) == image_ids
    for content in found.values():
        with Image.open(io.BytesIO(content)) as image:
            assert (image.format, image.mode, max(image.size)) == ("JPEG", "L", REPORT_PX)
            assert not image.getexif()
    assert max(map(len, found.values())) < 20_000


def test_no_image_stops_a_report(small, tmp_path):
    """A broken one has its reason, one in a compressed tar is not unpacked, and a folder that is gone holds none."""
    broken, image_ids = tmp_path / "broken", small.image_ids[:3]
    shutil.copytree(small.images, broken)
    (broken / image_ids[0]).write_bytes((broken / image_ids[0]).read_bytes()[:200])
    (broken / image_ids[1]).unlink()
    home = Workspace(tmp_path / "audit")
    home.remember(images=str(broken))
    found = report_images(home, image_ids)
    assert set(found) == {image_ids[0], image_ids[2]}
    assert isinstance(found[image_ids[0]], str)
    assert isinstance(found[image_ids[2]], bytes)
    with tarfile.open(tmp_path / "films.tar.gz", "w:gz") as archive:
        archive.add(small.images, "films")
    home.remember(images=str(tmp_path / "films.tar.gz"))
    assert report_images(home, image_ids) == dict.fromkeys(image_ids, STREAMED)
    for gone in (tmp_path / "gone", tmp_path):
        (tmp_path / "films.tar.gz").unlink(missing_ok=True)
        shutil.rmtree(broken, ignore_errors=True)
        home.remember(images=str(gone))
        assert report_images(home, image_ids) == {}


def test_an_audit_shows_the_images_that_a_judge_was_asked_about(small, tmp_path):
    """`judge run --images` told the workspace where they are; the report of an audit elsewhere has none."""
    ask("stub:", small, tmp_path / "audit", limit_images=6)
    source = {"source": small.source, "mapping": small.mapping}
    pages = [bpals.audit(workspace=tmp_path / name, **source).report.read_text() for name in ("audit", "other")]
    assert ["data:image/jpeg;base64," in page for page in pages] == [True, False]
    shutil.rmtree(tmp_path / "films", ignore_errors=True)
    Workspace(tmp_path / "audit").remember(images=str(tmp_path / "gone"))
    again = bpals.audit(workspace=tmp_path / "audit", **source).report.read_text()
    assert "It is not shown: image not at hand." in again
    assert "No label has another flag." in again
