"""Merging shards: in any order, twice, with parts that were killed, it is one run; what contradicts is reported."""

import hashlib
import itertools
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bpals.errors import UsageError
from bpals.images.stream import ImageFeatures
from bpals.judges.stub import StubJudge
from bpals.store.features import FeatureCache, ProbePlan
from bpals.store.ledger import Ledger
from bpals.store.shards import Shard
from bpals.store.workspace import Workspace
from bpals.tasks.image_access import open_manifest
from bpals.tasks.judge import Order
from bpals.tasks.judge_status import status_of
from bpals.tasks.merge import merge
from bpals.tasks.probe import run_probe
from world import datasets, shard_child, tiny_onnx
from world.datasets import ask
from world.ledgers import asked, enrolled, failed
from world.words import mentions

FILMS = 40


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Some films; read them, do not change them."""
    return datasets.write(tmp_path_factory.mktemp("small"), FILMS)


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    """The same judge, asked in one run."""
    home = tmp_path_factory.mktemp("whole")
    ask(StubJudge(seed=5), small, home)
    return home


@pytest.fixture(scope="module")
def thirds(small, tmp_path_factory):
    """Three shards, each in a workspace of its own; read them, do not change them."""
    homes = [tmp_path_factory.mktemp(f"w{part}") for part in (1, 2, 3)]
    for part, home in enumerate(homes, start=1):
        ask(StubJudge(seed=5), small, home, shard=Shard(part, 3))
    return homes


@pytest.fixture(scope="module")
def processes():
    """Start processes that need no time to import: they are forked from one that has."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["__main__", "world.shard_child", "psycopg", "sqlalchemy.dialects.postgresql.psycopg"]
    )
    return context


def sealed(home, name="stub"):
    """The bytes of a judge's sealed table."""
    return (home / "judgments" / f"{name}.parquet").read_bytes()


def contents(home):
    """All that a ledger holds of the stub, but for the numbers of films and runs, and the time."""
    with Ledger.open(home / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.verify() == []
        judge_id = ledger.judge_id("stub")
        replies = ledger.replies(judge_id).drop("latency_ms").rows()
        runs = sorted((run["plan"]["todo"], run["state"], len(run["events"])) for run in ledger.runs(judge_id))
        controls = ledger.replies(judge_id, control=True).drop("latency_ms").rows()
        return replies, controls, runs, ledger.done(judge_id)


def test_r17_shards_merged_in_any_order_are_one_run(thirds, whole, tmp_path):
    """Each order gives the same bytes as the run that was never divided."""
    for number, order in enumerate(itertools.permutations(thirds)):
        home = tmp_path / str(number)
        done = merge(order, workspace=home)
        assert (done.clashing, done.notices) == (0, [])
        (judge,) = done.judges
        assert (judge.run.state, judge.run.films) == ("done", FILMS)
        assert sealed(home) == sealed(whole)
        assert contents(home)[:2] == contents(whole)[:2]


def test_a_shard_asks_about_its_own_films_and_shows_the_controls_of_all(small, thirds, whole):
    """No film is asked about twice, and what a judge says without a film is the same everywhere."""
    for part, home in enumerate(thirds, start=1):
        _, controls, _, films = contents(home)
        assert set(films) == {name for name in small.image_ids if Shard(part, 3).holds(name)}
        assert controls == contents(whole)[1]


def test_r17_merging_twice_and_overlapping_changes_nothing(thirds, whole, tmp_path):
    """Again, one at a time, a part twice in one command, and with the whole run on top: the same ledger."""
    home = tmp_path / "home"
    merge(thirds, workspace=home)
    once = contents(home)
    again = merge([*thirds, thirds[0]], workspace=home)
    (judge,) = again.judges
    assert (judge.new, again.clashing) == (0, 0)
    for part in thirds:
        merge([part], workspace=home)
    assert contents(home) == once
    assert merge([whole], workspace=home).clashing == 0
    assert contents(home)[0] == once[0]
    assert sealed(home) == sealed(whole)
    assert status_of(home)[0]["films"] == FILMS


def test_shards_of_a_sample_are_the_sample(small, tmp_path):
    """--limit-images draws first and divides then: all shards together ask about the films of one run."""
    ask(StubJudge(seed=5), small, tmp_path / "whole", limit_images=9)
    for part in (1, 2):
        ask(StubJudge(seed=5), small, tmp_path / f"w{part}", limit_images=9, shard=Shard(part, 2))
    merge([tmp_path / "w2", tmp_path / "w1"], workspace=tmp_path / "home")
    assert sealed(tmp_path / "home") == sealed(tmp_path / "whole")


def test_the_parts_are_only_read(thirds, tmp_path):
    """No byte of a part's ledger or tables changes."""

    def hashes():
        files = [file for part in thirds for file in sorted(part.rglob("*")) if file.is_file()]
        kept = [file for file in files if not file.name.endswith(("-wal", "-shm"))]
        return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in kept}

    before = hashes()
    merge(thirds, workspace=tmp_path)
    assert hashes() == before


def test_a_part_that_is_missing_or_unfinished_is_said(small, thirds, tmp_path):
    """Two of three shards: the third is named; one that was stopped early is named with its end."""
    done = merge(thirds[:2], workspace=tmp_path / "two")
    assert [notice.code for notice in done.notices] == ["shards_missing"]
    assert "3/3" in done.notices[0].message
    assert done.judges[0].run.state == "unfinished"
    killed = tmp_path / "killed"
    shutil.copytree(thirds[2], killed)
    with Ledger.open(killed / "ledger.sqlite") as ledger:
        ledger.end(ledger.runs(ledger.judge_id("stub"))[-1]["run_id"], "interrupted", {})
    done = merge([*thirds[:2], killed], workspace=tmp_path / "three")
    assert "3/3 (interrupted)" in done.notices[0].message
    ask(StubJudge(seed=5), small, killed, shard=Shard(3, 3))
    assert done.judges[0].run.state == "interrupted"


def test_x04_eight_shards_of_which_two_are_killed_and_requeued_are_one_run(small, whole, processes, tmp_path):
    """X04: kill -9 in the middle of two of eight, the same command again, merged: the bytes of one run."""
    homes = [tmp_path / f"w{part}" for part in range(1, 9)]
    first = [
        processes.Process(target=shard_child.go, args=(small, home, f"{part}/8"), kwargs={"killed": part in (3, 6)})
        for part, home in enumerate(homes, start=1)
    ]
    codes = run_two_at_a_time(first)
    assert [part for part, code in enumerate(codes, start=1) if code] == [3, 6]
    assert {codes[2], codes[5]} == {-9}
    partly = merge(homes, workspace=tmp_path / "partly")
    assert 0 < partly.judges[0].run.films < FILMS
    again = [processes.Process(target=shard_child.go, args=(small, homes[part - 1], f"{part}/8")) for part in (3, 6)]
    assert run_two_at_a_time(again) == [0, 0]
    done = merge(homes[::-1], workspace=tmp_path / "partly")
    assert (done.clashing, done.notices, done.judges[0].run.state) == (0, [], "done")
    assert sealed(tmp_path / "partly") == sealed(whole)
    merge(homes, workspace=tmp_path / "fresh")
    assert sealed(tmp_path / "fresh") == sealed(whole)


def run_two_at_a_time(started):
    """Run processes, two at once, and give how each ended."""
    for first, second in zip(started[::2], started[1::2], strict=True):
        first.start()
        second.start()
        first.join()
        second.join()
    return [process.exitcode for process in started]


def test_several_processes_write_their_shards_to_one_postgresql(small, whole, postgres_url, processes, tmp_path):
    """Two shards at once, one of them killed and begun again while the other's ledger is theirs both: one run."""
    both = [
        processes.Process(
            target=shard_child.go,
            args=(small, tmp_path / f"w{part}", f"{part}/2"),
            kwargs={"ledger": postgres_url, "killed": part == 2},
        )
        for part in (1, 2)
    ]
    codes = run_two_at_a_time(both)
    assert codes == [0, -9]
    shard_child.go(small, tmp_path / "w2", "2/2", ledger=postgres_url)
    with Ledger.open(postgres_url, readonly=True) as ledger:
        states = sorted(run["state"] for run in ledger.runs(ledger.judge_id("stub")))
        assert not ledger.busy()
    assert "killed" in states
    done = ask(StubJudge(seed=5), small, tmp_path / "all", ledger=postgres_url)
    assert (done.state, done.films) == ("done", FILMS)
    assert sealed(tmp_path / "all") == sealed(whole)
    merged = merge([tmp_path / "w1", tmp_path / "w2"], workspace=tmp_path / "merged", ledger=postgres_url)
    assert (merged.judges[0].new, merged.clashing) == (0, 0)
    assert sealed(tmp_path / "merged") == sealed(whole)


def test_a_shard_on_postgresql_is_refused_to_a_second_process_and_another_shard_is_not(small, postgres_url, tmp_path):
    """The lock is that of the shard; whoever ends killed runs leaves those of other shards alone."""
    with Ledger.open(postgres_url) as other, other.lock("judge run 1/2"):
        judge_id = other.enrol(StubJudge(seed=9, name="x").card, StubJudge().questions(vocabulary(small)), "films")
        run_id = other.begin(judge_id, {"shard": "1/2"}, {})
        assert other.busy()
        with pytest.raises(Exception, match=r"judge run 1/2 .*writing"):
            ask(StubJudge(seed=5), small, tmp_path / "first", ledger=postgres_url, shard=Shard(1, 2))
        ask(StubJudge(seed=5), small, tmp_path / "second", ledger=postgres_url, shard=Shard(2, 2))
        assert [run["state"] for run in other.runs(judge_id) if run["run_id"] == run_id] == ["running"]


def vocabulary(small):
    """The findings of the small dataset."""
    from bpals.tasks.datasets import load_source

    return load_source(small.source, small.mapping).vocabulary


def test_merging_into_postgresql_is_the_same(thirds, whole, postgres_url, tmp_path):
    """The target may be a server: the bytes that are sealed are the same, and again nothing is new."""
    done = merge(thirds, workspace=tmp_path, ledger=postgres_url)
    assert done.judges[0].new == FILMS
    assert sealed(tmp_path) == sealed(whole)
    assert merge(thirds[::-1], workspace=tmp_path).judges[0].new == 0
    assert not (tmp_path / "ledger.sqlite").exists()


def test_a_conflict_is_listed_and_the_first_value_stays(thirds, tmp_path):
    """R17: the same film, the same question, another number: reported, not averaged."""
    spoilt = tmp_path / "spoilt"
    shutil.copytree(thirds[0], spoilt)
    change_an_answer(spoilt)
    done = merge([thirds[0], spoilt], workspace=tmp_path / "ab")
    assert done.clashing == 1
    (clash,) = done.clashes
    assert (clash.judge, clash.there.startswith("answered 99")) == ("stub", True)
    assert sealed(tmp_path / "ab") == sealed(thirds[0])
    other = merge([spoilt, thirds[0]], workspace=tmp_path / "ba")
    assert (other.clashing, other.clashes[0].here.startswith("answered 99")) == (1, True)


def change_an_answer(home):
    """Make one reply of a ledger say something else."""
    with Ledger.open(home / "ledger.sqlite") as ledger:
        ledger.change(lambda connection: connection.exec_driver_sql(
            "UPDATE reply SET logit = 99 WHERE number = 0 AND film_id = "
            "(SELECT min(film_id) FROM film WHERE control = '')"))  # fmt: skip


def test_success_beats_failure_whichever_comes_first(ledger_address, tmp_path):
    """A film that failed in one part and was answered in another is answered, in both orders, attempts kept."""
    paths = [tmp_path / "a.sqlite", tmp_path / "b.sqlite"]
    for path, film in zip(paths, (failed("1.png"), asked("1.png")), strict=True):
        with Ledger.open(path) as ledger:
            judge_id, run_id = enrolled(ledger)
            ledger.write(judge_id, run_id, [film])
    seen = []
    for order in (paths, paths[::-1]):
        address = ledger_address if not seen else tmp_path / "second" / "ledger.sqlite"
        with Ledger.open(address) as target:
            for path in order:
                with Ledger.open(path, readonly=True) as source:
                    judge_id = enrolled(target)[0]
                    numbers = target.take_runs(judge_id, source.stored_runs(1))
                    _, clashes = target.take_films(judge_id, source.stored_films(1, 0)[1], numbers)
                    assert clashes == []
            assert target.verify() == []
            seen.append(target.replies(judge_id).drop("latency_ms").rows())
    assert seen[0] == seen[1]
    assert {row[7] for row in seen[0]} == {"answered"}


def test_films_of_other_bytes_are_a_conflict_and_never_mixed(tmp_path):
    """The same name and another file: what was first stays, also where it had failed."""
    with Ledger.open(tmp_path / "a.sqlite") as target, Ledger.open(tmp_path / "b.sqlite") as source:
        for ledger, film in ((target, failed("1.png", sha256="old")), (source, asked("1.png", sha256="new"))):
            judge_id, run_id = enrolled(ledger)
            ledger.write(judge_id, run_id, [film])
        numbers = target.take_runs(1, source.stored_runs(1))
        _, clashes = target.take_films(1, source.stored_films(1, 0)[1], numbers)
        assert [(clash.subject, clash.here, clash.there) for clash in clashes] == [("", "old", "new")]
        assert set(target.replies(1)["outcome"]) == {"failed"}


def test_another_judge_under_the_same_name_is_refused_with_the_difference(small, thirds, tmp_path):
    """R17: another fingerprint is not mixed; the message names the field and the part."""
    other = tmp_path / "other"
    ask(StubJudge(seed=6), small, other, shard=Shard(2, 3))
    with pytest.raises(UsageError, match=r"'stub' .*settings\.seed .*5.*6"):
        merge([thirds[0], other], workspace=tmp_path / "home")


def test_another_dataset_is_refused(thirds, tmp_path):
    """Two datasets are two workspaces."""
    spoilt = tmp_path / "spoilt"
    shutil.copytree(thirds[0], spoilt)
    with Ledger.open(spoilt / "ledger.sqlite") as ledger:
        ledger.change(lambda connection: connection.exec_driver_sql("UPDATE judge SET dataset = 'elsewhere'"))
    with pytest.raises(UsageError, match=r"dataset 'elsewhere'"):
        merge([thirds[1], spoilt], workspace=tmp_path / "home")


def another_table(small, folder, change=lambda table: table.head(FILMS // 2)):
    """The same mapping, the same films, and a table that says something else."""
    table = folder / "other.csv"
    change(pl.read_csv(small.source.removeprefix("table:"), infer_schema=False)).write_csv(table)
    return replace(small, source=f"table:{table}")


def test_shards_of_two_tables_are_refused_in_any_order_and_nothing_is_written(small, thirds, tmp_path):
    """The message names both tables with their hashes, and what to type; the target is not begun."""
    other = another_table(small, tmp_path)
    ask(StubJudge(seed=5), other, tmp_path / "w2", shard=Shard(2, 3))
    for parts in ([thirds[0], tmp_path / "w2"], [tmp_path / "w2", thirds[0]]):
        first, second = (small, other) if parts[0] == thirds[0] else (other, small)
        with pytest.raises(UsageError) as caught:
            merge(parts, workspace=tmp_path / "home")
        said = str(caught.value)
        assert said.index(second.source) < said.index(first.source)
        assert said.count("(sha256:") == 2
        assert mentions(said, "--source and --mapping", str(parts[0]))
        assert not (tmp_path / "home").exists()
    merge([thirds[0]], workspace=tmp_path / "home")
    with pytest.raises(UsageError, match=r"w2 .*other\.csv .*two datasets"):
        merge([tmp_path / "w2"], workspace=tmp_path / "home")


@pytest.mark.parametrize("what", ["claims", "scores", "features"])
def test_tables_of_the_same_films_that_claim_other_things_are_refused(small, what, tmp_path):
    """Whatever came of them, the audit of the merged workspace would be of the one or of the other."""
    other = another_table(small, tmp_path, lambda table: table.with_columns(Effusion=pl.lit("0")))
    spec = write_scores(tmp_path / "scores.csv", small.image_ids, 0.25)
    for part, dataset in ((1, small), (2, other)):
        home = tmp_path / f"w{part}"
        if what == "features":
            look_at(home, {small.image_ids[part]: "a file"}, dataset)
        else:
            ask(spec if what == "scores" else StubJudge(seed=5), dataset, home, limit_images=6, shard=Shard(part, 2))
    with pytest.raises(UsageError, match="two datasets are never mixed"):
        merge([tmp_path / "w1", tmp_path / "w2"], workspace=tmp_path / "home")


def test_the_same_table_elsewhere_and_another_pace_are_the_same_run(small, thirds, whole, tmp_path):
    """Paths, pace and workers may differ between machines."""
    there = tmp_path / "there"
    shutil.copytree(small.images, there / "pictures")
    shutil.copy(small.mapping, there)
    there.joinpath("copy.csv").write_bytes(Path(small.source.removeprefix("table:")).read_bytes())
    moved = replace(small, source=f"table:{there / 'copy.csv'}", images=there / "pictures",
                    mapping=str(there / Path(small.mapping).name))  # fmt: skip
    ask(StubJudge(seed=5), moved, tmp_path / "w3", shard=Shard(3, 3), pace=replace(datasets.QUICK, tries=3), workers=1)
    for name, parts in (("last", [*thirds[:2], tmp_path / "w3"]), ("first", [tmp_path / "w3", *thirds[:2]])):
        done = merge(parts, workspace=tmp_path / name)
        assert (done.judges[0].run.state, done.clashing, done.notices) == ("done", 0, [])
        assert sealed(tmp_path / name) == sealed(whole)


def test_a_table_that_changed_since_is_refused_until_the_shards_have_seen_it(small, tmp_path):
    """Running a shard again asks about nothing, and takes note of the table as it is now."""
    table = tmp_path / "films.csv"
    shutil.copy(small.source.removeprefix("table:"), table)
    mine, homes = replace(small, source=f"table:{table}"), [tmp_path / "w1", tmp_path / "w2"]

    def ask_both():
        return [ask(StubJudge(seed=5), mine, home, shard=Shard(part, 2)) for part, home in enumerate(homes, start=1)]

    ask_both()
    table.write_bytes(table.read_bytes().replace(b",F,", b",M,"))
    with pytest.raises(UsageError, match="mapping has changed"):
        merge(homes, workspace=tmp_path / "home")
    assert [run.tally for run in ask_both()] == [None, None]
    assert merge(homes, workspace=tmp_path / "home").judges[0].run.state == "done"


def test_a_part_that_does_not_say_its_dataset_is_said(thirds, tmp_path):
    """A ledger that was copied without its folder is merged, and nobody thinks that its table was compared."""
    (tmp_path / "w2").mkdir()
    shutil.copy(thirds[1] / "ledger.sqlite", tmp_path / "w2")
    done = merge([thirds[0], tmp_path / "w2", thirds[2]], workspace=tmp_path / "home")
    assert [notice.code for notice in done.notices] == ["dataset_untold"]
    assert mentions(done.notices[0].message, "w2", "taken for table:")


def test_films_that_the_dataset_does_not_have_are_said(small, tmp_path):
    """A shard that was run again with another table keeps what it heard before of films that are not in it."""
    half = another_table(small, tmp_path)
    ask(StubJudge(seed=5), small, tmp_path / "w1", shard=Shard(1, 1))
    ask(StubJudge(seed=5), half, tmp_path / "w1", shard=Shard(1, 1))
    done = merge([tmp_path / "w1"], workspace=tmp_path / "home")
    assert [(notice.code, notice.count) for notice in done.notices] == [("films_elsewhere", FILMS // 2)]
    assert done.judges[0].run.state == "done"


def drawn(home):
    """How the stub of a workspace is sealed, and its bytes."""
    return Workspace(home).judge("stub").record["state"], sealed(home)


def test_shards_that_were_drawn_differently_are_unfinished_in_any_order(small, tmp_path):
    """Half of nine films and half of three are neither: it is said, and one run of all the nine makes them whole."""
    homes = [tmp_path / "w1", tmp_path / "w2"]
    for part, (home, limit) in enumerate(zip(homes, (9, 3), strict=True), start=1):
        ask(StubJudge(seed=5), small, home, limit_images=limit, shard=Shard(part, 2))
    for name, order in (("ab", homes), ("ba", homes[::-1])):
        done = merge(order, workspace=tmp_path / name)
        assert [notice.code for notice in done.notices] == ["shards_drawn"]
        assert mentions(done.notices[0].message, "1/2: 9 of 40", "seed 0", "2/2: 3 of 40", "seed 0")
    assert drawn(tmp_path / "ab") == drawn(tmp_path / "ba")
    assert drawn(tmp_path / "ab")[0] == "unfinished"
    ask(StubJudge(seed=5), small, tmp_path / "ab", limit_images=9)
    assert (merge(homes, workspace=tmp_path / "ab").notices, drawn(tmp_path / "ab")[0]) == ([], "done")
    ask(StubJudge(seed=5), small, homes[1], limit_images=9, shard=Shard(2, 2))
    assert (merge(homes, workspace=tmp_path / "ba").notices, drawn(tmp_path / "ba")) == ([], drawn(tmp_path / "ab"))


def test_a_shard_that_found_fewer_films_is_not_a_part_of_the_whole(small, thirds, tmp_path):
    """Its films were not all there, which its own folder cannot tell; the same command with all of them mends it."""
    fewer = tmp_path / "fewer"
    shutil.copytree(small.images, fewer)
    for name in small.image_ids[:9]:
        (fewer / name).unlink()
    ask(StubJudge(seed=5), replace(small, images=fewer), tmp_path / "w3", shard=Shard(3, 3))
    parts = [*thirds[:2], tmp_path / "w3"]
    done = merge(parts, workspace=tmp_path / "home")
    assert [(notice.code, done.judges[0].run.state) for notice in done.notices] == [("shards_drawn", "unfinished")]
    assert "all of 31 images" in done.notices[0].message
    ask(StubJudge(seed=5), small, tmp_path / "w3", shard=Shard(3, 3))
    assert merge(parts, workspace=tmp_path / "home").judges[0].run.state == "done"


def test_a_shard_that_has_nothing_left_to_ask_writes_down_that_it_is_done(small, tmp_path):
    """Also one that was killed after its last film, or that has no film; a smaller draw is nothing new."""
    lone = Shard(next(part for part in range(1, 999) if not any(map(Shard(part, 999).holds, small.image_ids))), 999)
    ask(StubJudge(seed=5), small, tmp_path, shard=lone)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        (last,) = [run for run in ledger.runs(1) if "controls" not in run["plan"]]
        assert (last["state"], last["plan"]["todo"], last["plan"]["shard"]) == ("done", 0, str(lone))
        ledger.end(last["run_id"], "killed", {})
    for limit in (None, None, 9):
        ask(StubJudge(seed=5), small, tmp_path, shard=lone, limit_images=limit)
        with Ledger.open(tmp_path / "ledger.sqlite", readonly=True) as ledger:
            states = [run["state"] for run in ledger.runs(1) if "controls" not in run["plan"]]
        assert states == ["killed", "done"]


def test_new_and_known_films_are_all_films(thirds, small, tmp_path):
    """Controls are no films, and a film that two parts hold is one: what is printed adds up."""
    sizes = [sum(map(Shard(part, 3).holds, small.image_ids)) for part in (1, 2, 3)]
    for parts, new in (([0, 1, 0], sizes[0] + sizes[1]), ([1, 2], sizes[2]), ([0, 1, 2], 0)):
        (judge,) = merge([thirds[part] for part in parts], workspace=tmp_path).judges
        assert (judge.new, judge.new + judge.known) == (new, judge.run.films)


def test_a_folder_without_a_judge_or_the_target_itself_is_refused(thirds, tmp_path):
    """What is typed is never left out in silence."""
    with pytest.raises(UsageError, match="holds no judge"):
        merge([thirds[0], tmp_path / "nowhere"], workspace=tmp_path / "home")
    with pytest.raises(UsageError, match="into itself"):
        merge(thirds, workspace=thirds[0])


def write_scores(path, ids, p):
    """Scores of a table, one number for all."""
    rows = {"image_id": ids, **{finding: [p] * len(ids) for finding in datasets.FINDINGS}}
    pl.DataFrame(rows).write_csv(path)
    return f"table:{path}"


def test_sealed_tables_come_along(small, tmp_path):
    """Scores that were read, and are in no ledger, are merged by film and finding."""
    spec = write_scores(tmp_path / "scores.csv", small.image_ids, 0.25)
    for name in ("a", "b"):
        ask(spec, small, tmp_path / name)
    done = merge([tmp_path / "a", tmp_path / "b"], workspace=tmp_path / "home")
    assert [(each.run.name, each.run.films, done.clashing) for each in done.judges] == [("scores", FILMS, 0)]
    assert (done.judges[0].new, done.judges[0].known) == (FILMS, 0)
    (again,) = merge([tmp_path / "a"], workspace=tmp_path / "home").judges
    assert (again.new, again.known) == (0, FILMS)
    assert sealed(tmp_path / "home", "scores") == sealed(tmp_path / "a", "scores")


def test_sealed_parts_are_joined_and_contradictions_counted(small, tmp_path):
    """Of two parts of a sealed judge each brings its films; a failure gives way, another number is a conflict."""
    ask(write_scores(tmp_path / "scores.csv", small.image_ids, 0.25), small, tmp_path / "a")
    whole = Workspace(tmp_path / "a").judge("scores")
    table = whole.answers().sort("image_id", "finding")
    first = pl.col("image_id") == pl.col("image_id").first()
    failing = pl.when(first).then(pl.lit(None)).otherwise(pl.col("p_present")).alias("p_present")
    outcome = pl.when(first).then(pl.lit("failed")).otherwise(pl.col("outcome").cast(pl.String))
    parts = {
        "left": table.head(60).with_columns(failing, outcome.cast(table.schema["outcome"]).alias("outcome")),
        "right": table.filter(first | (pl.int_range(pl.len()) >= 60)),
        "wrong": table.tail(3).with_columns(pl.lit(0.75).alias("p_present")),
    }
    for name, part in parts.items():
        Workspace(tmp_path / name).write_judge("scores", whole.card, part, None, {"dataset": "films", "state": "done"})
        open_manifest(Workspace(tmp_path / name), small.source, small.mapping)
    for order in (("left", "right"), ("right", "left")):
        home = tmp_path / "-".join(order)
        done = merge([tmp_path / name for name in order], workspace=home)
        assert done.clashing == 0
        assert Workspace(home).judge("scores").answers().equals(table)
    done = merge([tmp_path / name for name in parts], workspace=tmp_path / "all")
    assert done.clashing == 3
    assert Workspace(tmp_path / "all").judge("scores").answers().equals(table)


def look_at(home, files, dataset, *, scale=1.0):
    """Keep features of some films, as the probe does."""
    cache = FeatureCache(home, "tiny", "sha256:" + "ab" * 32, 3)
    open_manifest(Workspace(home), dataset.source, dataset.mapping)
    with cache.writing() as writer:
        for name, sha256 in files.items():
            numbers = np.array([len(name), int(name[:3]), 1], dtype=np.float32) * scale
            writer.put(ImageFeatures(image_id=name, sha256=sha256, width_px=4, height_px=4, notes=(), features=numbers,
                            thumbnail=np.zeros((32, 32), dtype=np.uint8)))  # fmt: skip
    return cache


def test_features_of_two_parts_become_one_cache(small, tmp_path):
    """The probe's films, looked at in shards: in any order, twice, the same features; other bytes are a conflict."""
    names = small.image_ids[:10]
    parts = [{name: f"of {name}" for name in names if Shard(part, 2).holds(name)} for part in (1, 2)]
    for part, files in zip("ab", parts, strict=True):
        look_at(tmp_path / part, files, small)
    homes = [tmp_path / part for part in "ab"]
    for number, order in enumerate((homes, homes[::-1])):
        done = merge([*order, *order], workspace=tmp_path / str(number))
        assert (done.clashing, done.notices[0].code, done.notices[0].count) == (0, "features_merged", len(names))
    caches = [FeatureCache(tmp_path / name, "tiny", "sha256:" + "ab" * 32, 3) for name in "01"]
    assert caches[0].films().equals(caches[1].films())
    rows = caches[0].features(names).rows(0, len(names))
    assert rows[:, 1].tolist() == [int(name[:3]) for name in names]
    look_at(tmp_path / "c", {names[0]: "another file"}, small)
    done = merge([tmp_path / "c"], workspace=tmp_path / "0")
    assert [(clash.image_id, clash.subject) for clash in done.clashes] == [(names[0], "")]


def test_what_is_said_of_features_names_the_probe_and_what_was_drawn(small, tmp_path):
    """The line can be typed as it stands; shards of two draws are said, in any order, until one run drew as much."""
    homes = [tmp_path / "a", tmp_path / "b"]
    for part, (home, drawn) in enumerate(zip(homes, (1000, 4), strict=True), start=1):
        cache = look_at(home, {small.image_ids[part]: "a file"}, small)
        plan = ProbePlan(judge="probe-lite0", spec="probe:lite0", films=drawn, part=1, shard=f"{part}/2")
        plan.keep(cache.path)
    for name, order in (("ab", homes), ("ba", homes[::-1])):
        first, second = merge(order, workspace=tmp_path / name).notices
        assert mentions(first.message, "drawn differently", "1,000", "4")
        assert mentions(second.message, "2 images", "2 blocks")
        assert second.message.endswith(f"bpals judge run probe:lite0 --workspace {tmp_path / name}")
    (only,) = merge(homes[:1], workspace=tmp_path / "ab").notices
    assert mentions(only.message, "0 blocks")
    (alone,) = merge(homes[:1], workspace=tmp_path / "alone").notices
    assert mentions(alone.message, "1 image", "1 block")


def test_a_probe_whose_shards_were_merged_is_the_probe_of_one_run(tmp_path):
    """Two shards look, the merged workspace learns: the same bytes as where one run did both."""
    (tmp_path / "small").mkdir()
    films = datasets.write(tmp_path / "small", 240)
    spec = f"probe:{tiny_onnx.write(tmp_path / 'tiny.onnx')}"
    order = Order(source=films.source, mapping=films.mapping, workers=0)
    run_probe(spec, images=films.images, workspace=tmp_path / "whole", order=order)
    for part in (1, 2):
        run_probe(
            spec, images=films.images, workspace=tmp_path / f"w{part}", order=replace(order, shard=Shard(part, 2))
        )
    done = merge([tmp_path / "w2", tmp_path / "w1"], workspace=tmp_path / "home")
    assert [notice.code for notice in done.notices] == ["features_merged"]
    run = run_probe(spec, workspace=tmp_path / "home", order=Order(workers=0))
    assert (run.films, run.tally.films_all, run.counts["answered"] > 0) == (240, 0, True)
    assert sealed(tmp_path / "home", "probe-tiny") == sealed(tmp_path / "whole", "probe-tiny")


def test_what_a_merge_holds_in_memory_is_a_batch(tmp_path):
    """Films are taken some at a time: a ledger of many gives no more at once than a few megabytes hold."""
    many = 501
    with Ledger.open(tmp_path / "a.sqlite") as source:
        judge_id, run_id = enrolled(source)
        source.write(judge_id, run_id, [asked(f"{number}.png") for number in range(many)])
        sizes, last = [], 0
        while True:
            last, some = source.stored_films(judge_id, last)
            if not some:
                break
            sizes.append(len(some))
    assert sizes == [200, 200, 101]


def test_replies_are_copied_with_all_their_evidence(tmp_path):
    """Text, tokens, milliseconds, tries, time: a film is there as it was."""
    film = asked("1.png")
    with Ledger.open(tmp_path / "a.sqlite") as source, Ledger.open(tmp_path / "b.sqlite") as target:
        for ledger in (source, target):
            enrolled(ledger)
        source.write(1, 1, [film])
        source.event(1, "limit", "cut to 3")
        numbers = target.take_runs(1, source.stored_runs(1))
        target.take_films(1, source.stored_films(1, 0)[1], numbers)
        target.take_runs(1, source.stored_runs(1))
        assert source.replies(1).equals(target.replies(1))
        assert source.counts(1) == target.counts(1)
        assert [event["detail"] for run in target.runs(1) for event in run["events"]] == ["cut to 3"]
