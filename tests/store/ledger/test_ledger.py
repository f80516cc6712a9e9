"""The ledger as it is meant to be used: whole films in, counts and tables out, nothing twice, nothing mixed.

X06: all of it on a file and on PostgreSQL, with the same results.
"""

import dataclasses
import json
import math
import threading
import time

import polars as pl
import pytest
from sqlalchemy import func, insert, select

from bpals.errors import ContractBroken, UnknownName, UsageError, WorkspaceError
from bpals.findings import NIH
from bpals.store.ledger import AskedFilm, Ledger, pack, unpack
from bpals.store.ledger.backend import insert_new
from bpals.store.ledger.schema import STUDY
from bpals.types import FILM_ANSWERS, Attempt, JudgeCard, Judgment, Question, Reply, Usage, answers_schema
from world.ledgers import CARD, NIH_QUESTIONS, QUESTIONS, asked, enrolled, failed, snapshot

pytestmark = pytest.mark.quick


@pytest.fixture
def ledger(ledger_address):
    """A new ledger, in a file and on PostgreSQL."""
    with Ledger.open(ledger_address) as opened:
        yield opened


def test_the_file_is_kept_as_promised(tmp_path):
    """A write-ahead log, a full sync at each commit, references that hold; for those who read and those who write."""
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000, "mmap_size": 0}
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        for opened in (ledger.reading, ledger.writing):
            with opened() as connection:
                assert {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in wanted} == wanted


def test_a_ledger_says_where_it_is_and_what_it_speaks(ledger, ledger_address):
    """The dialect and the place are told; only a file has a path."""
    assert ledger.dialect in str(ledger_address).replace("ledger.", "")
    if ledger.dialect == "sqlite":
        assert ledger.where == str(ledger.path)
    else:
        assert ledger.where.startswith("postgresql://")
        with pytest.raises(UsageError, match="is no file"):
            _ = ledger.path


def test_the_clock_is_that_of_the_database(ledger):
    """Seconds since 1970, with fractions, and they go on within a transaction."""
    with ledger.reading() as connection:
        first = ledger.database_time(connection)
        time.sleep(0.02)  # the clock itself is tested
        second = ledger.database_time(connection)
    assert abs(first - time.time()) < 60
    assert 0.01 < second - first < 10


def test_a_transaction_is_kept_whole_or_not_at_all(ledger):
    """What is written through `writing` is there after it, and nothing of it if it ends in an error."""
    row = {"name": "a", "settings": "{}", "at": "now"}
    with ledger.writing() as connection:
        connection.execute(insert(STUDY).values(row))
    with pytest.raises(ZeroDivisionError), ledger.writing() as connection:
        connection.execute(insert(STUDY).values({**row, "name": "b"}))
        _ = 1 / 0
    assert ledger.look(lambda connection: connection.execute(select(STUDY.c.name)).scalars().all()) == ["a"]
    with pytest.raises(ContractBroken, match="refuses a row"), ledger.writing() as connection:
        connection.execute(insert(STUDY).values(row))
    ledger.change(lambda connection: connection.execute(insert(STUDY).values({**row, "name": "c"})))
    assert rows(ledger, "SELECT name FROM study ORDER BY name") == [("a",), ("c",)]


def test_who_reads_sees_one_moment(ledger):
    """What others commit meanwhile does not show inside a transaction that reads."""

    def count(connection):
        return connection.execute(select(func.count()).select_from(STUDY)).scalar_one()

    with ledger.reading() as connection:
        assert count(connection) == 0
        with ledger.writing() as other:
            other.execute(insert(STUDY).values({"name": "a", "settings": "{}", "at": "now"}))
        assert count(connection) == 0
    assert ledger.look(count) == 1


def test_rows_that_are_there_are_not_inserted_again(ledger):
    """`insert_new` leaves what a key or a unique column holds already, and counts what is new."""
    rows = [{"name": f"{n}", "settings": "{}", "at": "first"} for n in range(1200)]
    with ledger.writing() as connection:
        assert insert_new(connection, STUDY, rows[:700]) == 700
        assert insert_new(connection, STUDY, [{**row, "at": "second"} for row in rows]) == 500
        assert insert_new(connection, STUDY, []) == 0
        kept = dict(connection.execute(select(STUDY.c.at, func.count()).group_by(STUDY.c.at)).all())
    assert kept == {"first": 700, "second": 500}


def test_what_is_written_is_read(ledger):
    """A film's answers come back as tables, with the evidence."""
    judge, run = enrolled(ledger)
    ledger.write(judge, run, [asked("b.png"), asked("a.png", logit=3.0)])
    judgments = ledger.judgments(judge, NIH)
    assert judgments.schema == answers_schema(NIH)
    assert judgments["image_id"].to_list() == ["a.png", "a.png", "b.png", "b.png"]
    assert judgments["finding"].to_list() == ["Effusion", "Pneumothorax"] * 2
    assert set(judgments["judge"]) == {"stub"}
    assert set(judgments["kind"]) == {"image"}
    assert judgments["p_present"][0] == pytest.approx(1 / (1 + math.exp(-3.0)))
    answers = ledger.film_answers(judge)
    assert answers.schema == FILM_ANSWERS
    assert answers["topic"].to_list() == ["devices", "devices"]
    replies = ledger.replies(judge)
    assert replies.height == 2 * len(QUESTIONS)
    assert replies["subject"].to_list()[:3] == [q.subject for q in QUESTIONS[:3]]
    assert set(replies["text"]) == {"Yes"}
    assert replies["entropy"][0] == pytest.approx(0.9 * -math.log(0.9) + 0.1 * -math.log(0.1), rel=1e-6)
    assert ledger.verify() == []


def test_an_empty_ledger_gives_empty_tables(ledger):
    """Nothing asked is no error, and no table without its columns."""
    judge, _ = enrolled(ledger)
    assert ledger.judgments(judge, NIH).schema == answers_schema(NIH)
    assert ledger.film_answers(judge).is_empty()
    assert ledger.replies(judge, control=True).is_empty()
    assert ledger.done(judge) == {}
    assert ledger.counts(judge)["films"] == 0


def test_a_failure_is_counted_and_has_no_number(ledger):
    """Six outcomes are counted by name; what failed has a reason and no probability."""
    judge, run = enrolled(ledger)
    ledger.write(judge, run, [asked("a.png"), failed("b.png")])
    counts = ledger.counts(judge)
    assert counts["films"] == 2
    assert counts["replies"] == {
        "answered": 6, "abstained": 0, "refused": 0, "unparsed": 0, "unsupported": 0, "failed": 6
    }  # fmt: skip
    assert counts["judgments"]["failed"] == 3
    broken = ledger.judgments(judge, NIH).filter(pl.col("image_id") == "b.png")
    assert broken["p_present"].null_count() == 2
    assert set(broken["why"]) == {"timed out"}


def test_an_answer_without_a_number_is_refused(ledger):
    """The table itself holds that a logit is there exactly if the reply is an answer; NaN is no number."""
    judge, run = enrolled(ledger)
    film = asked("a.png")
    for broken in (
        Reply(outcome="answered"),
        Reply(outcome="answered", logit=math.nan),
        Reply(outcome="failed", logit=0.0),
        Reply(outcome="maybe", logit=None),
    ):
        with pytest.raises(ContractBroken, match=r"(?i)check"):
            ledger.write(judge, run, [dataclasses.replace(film, replies=[broken, *film.replies[1:]])])
    with pytest.raises(ContractBroken, match=r"(?i)check"):
        ledger.write(judge, run, [asked("b.png", p_present=1.5)])
    assert ledger.done(judge) == {}


def test_a_film_is_written_whole_or_not_at_all(ledger):
    """Too few replies, a judgment nobody asked for or one too few: the film is refused, and those beside it too."""
    judge, run = enrolled(ledger)
    film = asked("a.png")
    stray = Judgment(subject="Hernia", about="finding", outcome="answered", p_present=0.5)
    for broken, words in (
        (dataclasses.replace(film, replies=film.replies[:-1]), "5 replies"),
        (dataclasses.replace(film, judgments=[*film.judgments, stray]), "'Hernia'"),
        (dataclasses.replace(film, judgments=film.judgments[:-1]), "2 judgments"),
        (dataclasses.replace(film, control="black"), "none for a control"),
    ):
        with pytest.raises(ContractBroken, match=words):
            ledger.write(judge, run, [asked("whole.png"), broken])
    assert ledger.done(judge) == {}
    assert ledger.verify() == []


def test_a_film_written_again_is_left_as_it_is(ledger):
    """R03: a film that was committed before the kill and is asked again is counted once, and the first answer stays."""
    judge, run = enrolled(ledger)
    ledger.write(judge, run, [asked("a.png", logit=1.0)])
    before = snapshot(ledger, judge)
    ledger.write(judge, run, [asked("a.png", logit=-5.0), asked("a.png", logit=2.0)])
    assert snapshot(ledger, judge) == before


def test_two_films_with_the_same_bytes_are_two_films(ledger):
    """Datasets have duplicates under two names: each has its own answers."""
    judge, run = enrolled(ledger)
    ledger.write(judge, run, [asked("a.png", sha256="same"), asked("b.png", sha256="same")])
    assert ledger.done(judge) == {"a.png": "same", "b.png": "same"}
    assert ledger.counts(judge)["films"] == 2


def test_controls_stand_beside_the_films(ledger):
    """A control may carry a film's name; it has replies and no judgments, and is not a film that is done."""
    judge, run = enrolled(ledger)
    control = dataclasses.replace(asked("a.png", logit=0.5), judgments=(), control="black", sha256="")
    ledger.write(judge, run, [asked("a.png"), control])
    assert ledger.counts(judge)["films"] == 1
    assert ledger.counts(judge)["controls"] == 1
    assert ledger.replies(judge, control=True)["control"].to_list() == ["black"] * 6
    assert set(ledger.replies(judge)["control"]) == {""}
    assert ledger.judgments(judge, NIH).height == 2
    assert ledger.verify() == []


def test_what_failed_is_replaced_by_what_did_not(ledger):
    """With retry_failed such a film is asked again: success beats failure, and the failed tries stay."""
    judge, run = enrolled(ledger)
    tries = [Attempt(number=0, attempt=n, kind="timeout", message="10 s") for n in (1, 2)]
    ledger.write(judge, run, [dataclasses.replace(failed("a.png"), failures=tries), asked("b.png")])
    assert set(ledger.done(judge)) == {"a.png", "b.png"}
    assert set(ledger.done(judge, retry_failed=True)) == {"b.png"}
    second = ledger.begin(judge, {}, {})
    again = [Attempt(number=0, attempt=1, kind="status", status=503, message="busy")]
    for _ in range(2):
        ledger.write(judge, second, [dataclasses.replace(asked("a.png"), failures=again)])
    assert set(ledger.done(judge, retry_failed=True)) == {"a.png", "b.png"}
    assert ledger.counts(judge)["replies"]["answered"] == 12
    assert ledger.counts(judge)["tokens"] == {"prompt": 1200, "cached": 600, "output": 12}
    assert ledger.judgments(judge, NIH)["p_present"].null_count() == 0
    assert rows(ledger, "SELECT run_id, number, attempt, kind, status FROM attempt ORDER BY 1, 2, 3") == [
        (1, 0, 1, "timeout", None),
        (1, 0, 2, "timeout", None),
        (2, 0, 1, "status", 503),
    ]
    assert ledger.verify() == []


def rows(ledger, statement):
    """What a statement gives."""
    with ledger.reading() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]


def test_a_failure_replaces_nothing(ledger):
    """A retry that fails again, or fails where the first succeeded, takes no answer away."""
    judge, run = enrolled(ledger)
    half = asked("a.png")
    mixed = [Reply(outcome="failed", why="reset"), *half.replies[1:]]
    folded = [Judgment(subject="Effusion", about="finding", outcome="failed", p_present=None), *half.judgments[1:]]
    ledger.write(judge, run, [dataclasses.replace(half, replies=mixed, judgments=folded)])
    before = snapshot(ledger, judge)
    ledger.write(judge, run, [failed("a.png")])
    assert snapshot(ledger, judge) == before
    ledger.write(judge, run, [asked("a.png", logit=4.0)])
    after = ledger.replies(judge)
    assert after["logit"].to_list() == [4.0, -4.0, 1.0, -1.0, 1.0, -1.0]
    assert ledger.judgments(judge, NIH)["logit_present"].to_list() == [4.0, 1.0]
    assert ledger.counts(judge)["replies"]["failed"] == 0
    assert ledger.verify() == []


def test_answers_about_other_bytes_are_not_mixed_in(ledger):
    """A film that changed on disk between two tries keeps the answers about the first; an unreadable one had none."""
    judge, run = enrolled(ledger)
    ledger.write(judge, run, [failed("a.png", sha256="one"), failed("b.png", sha256="")])
    ledger.write(judge, run, [asked("a.png", sha256="two"), asked("b.png", sha256="three")])
    assert ledger.done(judge, retry_failed=True) == {"b.png": "three"}
    assert ledger.done(judge) == {"a.png": "one", "b.png": "three"}


def test_a_name_is_bound_to_one_judge(ledger):
    """R10: the same name with other settings, questions or data is refused, and every difference is named."""
    judge, run = enrolled(ledger)
    ledger.write(judge, run, [asked("a.png")])
    assert ledger.enrol(CARD, QUESTIONS, "nih") == judge
    other = dataclasses.replace(CARD, model="b/c", preparation={"side": 512}, settings={"seed": 1})
    with pytest.raises(UsageError, match="--name OTHER") as refused:
        ledger.enrol(other, QUESTIONS, "nih")
    for words in ("model was 'a/b', is 'b/c'", "preparation.side was 1024, is 512", "settings.seed was nothing, is 1"):
        assert words in str(refused.value)
    with pytest.raises(UsageError, match=r"dataset .*'nih'.*'padchest'"):
        ledger.enrol(CARD, QUESTIONS, "padchest")
    with pytest.raises(UsageError, match=r"questions .*6.*5"):
        ledger.enrol(CARD, QUESTIONS[:-1], "nih")
    reworded = [dataclasses.replace(question, text="Any?") for question in QUESTIONS]
    with pytest.raises(UsageError, match=r"question 1 .*Any\?.*5 more"):
        ledger.enrol(CARD, reworded, "nih")
    assert ledger.enrol(dataclasses.replace(other, judge="second"), QUESTIONS, "nih") != judge
    assert [card["judge"] for card in ledger.cards()] == ["stub", "second"]


def test_a_judge_that_never_said_anything_leaves_its_name_to_another(ledger):
    """Enrolled, begun, failed: nobody's answer is mixed with anybody's, and the attempts are forgotten."""
    judge, run = enrolled(ledger)
    ledger.write(judge, run, [failed("a.png")])
    ledger.event(run, "model", "a/b")
    other = dataclasses.replace(CARD, model="b/c")
    taken = ledger.enrol(other, QUESTIONS[:-1], "padchest")
    assert [card["model"] for card in ledger.cards()] == ["b/c"]
    assert ledger.questions(taken) == tuple(QUESTIONS[:-1])
    assert ledger.done(taken) == {}
    assert ledger.runs(taken) == []
    assert ledger.verify() == []


def test_what_does_not_change_an_answer_may_change(ledger):
    """A licence that was looked up later, or what the self-test saw, makes no other judge."""
    judge, _ = enrolled(ledger)
    assert ledger.enrol(dataclasses.replace(CARD, licence="Apache-2.0"), QUESTIONS, "nih") == judge
    ledger.note_observed(judge, {"mass": 0.97, "served": "m.gguf"})
    ledger.note_observed(judge, {"mass": 0.99})
    (card,) = ledger.cards()
    assert card["licence"] == "Apache-2.0"
    assert card["observed"] == {"mass": 0.99, "served": "m.gguf"}
    assert card["questions"] == 6
    assert card["dataset"] == "nih"
    assert card["fingerprint"] == CARD.fingerprint


def test_an_unknown_judge_is_named(ledger):
    """The message says who was asked here."""
    judge, run = enrolled(ledger)
    assert ledger.judge_id("stub") == judge
    with pytest.raises(UnknownName, match="Did you mean 'stub'"):
        ledger.judge_id("stubb")
    with pytest.raises(UsageError, match="number 7"):
        ledger.write(7, run, [asked("a.png")])


def test_a_judge_of_other_findings_is_refused(ledger):
    """A table of another vocabulary would be guesswork."""
    judge = ledger.enrol(CARD, [Question(subject="Gout")], "nih")
    with pytest.raises(UsageError, match="Gout"):
        ledger.judgments(judge, NIH)


def test_runs_and_events_are_kept_in_order(ledger):
    """Each start of the command has its plan, surroundings, end and what happened to it; a killed one says running."""
    judge, run = enrolled(ledger)
    ledger.event(run, "limit", {"from": 8, "to": 16})
    ledger.event(run, "restart", "the server came back")
    ledger.end(run, "done", {"films": 3})
    second = ledger.begin(judge, {"films": 9}, {"bpals": "0"})
    first, last = ledger.runs(judge)
    assert (first["run_id"], first["state"], first["counts"]) == (run, "done", {"films": 3})
    assert [event["detail"] for event in first["events"]] == [{"from": 8, "to": 16}, "the server came back"]
    assert (last["run_id"], last["state"], last["plan"], last["ended"]) == (second, "running", {"films": 9}, None)


def test_counts_do_not_depend_on_how_often_a_run_was_cut(tmp_path):
    """R21: films, outcomes, tokens, tries and seconds are those of an uninterrupted run."""
    films = [asked(f"{n}.png") if n % 3 else failed(f"{n}.png") for n in range(12)]
    found = []
    for size in (12, 5):
        path = tmp_path / str(size) / "ledger.sqlite"
        for start in range(0, len(films), size):
            with Ledger.open(path) as ledger:
                judge, run = enrolled(ledger)
                # What was in flight at the cut is asked again, and is there already.
                ledger.write(judge, run, films[max(0, start - 2) : start + size])
        with Ledger.open(path, readonly=True) as ledger:
            counts = ledger.counts(judge)
            del counts["latest"]
            found.append(counts)
    assert found[0] == found[1]
    assert found[0]["seconds"] == pytest.approx(8 * 6 * 0.25)


def test_a_reader_counts_while_a_writer_writes(ledger, ledger_address):
    """`bpals judge status` runs beside the run, and sees whole commits."""
    judge, run = enrolled(ledger)
    ledger.write(judge, run, [asked("a.png")])
    with Ledger.open(ledger_address, readonly=True) as reader, ledger.writing() as connection:
        connection.exec_driver_sql("DELETE FROM judgment")
        assert reader.counts(judge)["judgments"]["answered"] == 3
        connection.rollback()
    with Ledger.open(ledger_address, readonly=True) as reader:
        ledger.write(judge, run, [asked("b.png")])
        assert reader.counts(judge)["films"] == 2
        with pytest.raises(WorkspaceError, match=r"cannot be opened|no writes"):
            reader.write(judge, run, [asked("c.png")])


def test_any_thread_may_call_it(ledger):
    """The runner's writer thread writes what the main thread enrolled, while another counts."""
    judge, run = enrolled(ledger)
    errors = []

    def work(first):
        try:
            for n in range(first, first + 20):
                ledger.write(judge, run, [asked(f"{n}.png")])
                ledger.counts(judge)
        except WorkspaceError as error:  # pragma: no cover
            errors.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 100, 110)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert ledger.counts(judge)["films"] == 50
    assert ledger.verify() == []


def test_evidence_comes_back():
    """What a model said is kept: long text, no text, half characters, zeros, infinities."""
    for text, top in (
        ("Yes", (("Yes", -0.25), ("No", -1.5))),
        ("", (("Yes", -math.inf),)),
        ("I cannot tell. " * 200, ()),
        ("\ud83d", (("\udc00", -2.0), ("", -3.0))),
        ("", tuple((str(n), -float(n)) for n in range(255))),
    ):
        assert unpack(pack(Reply(outcome="unparsed", text=text, top=top))) == (text, top)
    assert unpack(pack(Reply(outcome="failed"))) == ("", ())
    assert unpack(pack(Reply(outcome="unparsed", text="a\0b", top=(("\0", -1.0),)))) == (
        "a\u2400b",
        (("\u2400", -1.0),),
    )
    _, ((_, value),) = unpack(pack(Reply(outcome="unparsed", top=(("x", -1e300),))))
    assert value == pytest.approx(-3.4e38, rel=1e-3)
    assert len(pack(Reply(outcome="unparsed", text="I cannot tell. " * 200))) < 100


def test_words_from_outside_cannot_break_a_row(ledger):
    """A reason with half a character or a zero in it is written, and the table can be read."""
    judge, run = enrolled(ledger)
    film = failed("a.png", why="bad \ud83d \0 byte")
    tries = [Attempt(number=0, attempt=1, kind="bad_reply", message="\udcff\0")]
    ledger.write(judge, run, [dataclasses.replace(film, failures=tries)])
    assert set(ledger.replies(judge)["why"]) == {"bad ? \u2400 byte"}
    odd = dataclasses.replace(
        asked("b.png"), replies=[dataclasses.replace(r, text="\ud83d") for r in asked("b").replies]
    )
    ledger.write(judge, run, [odd])
    assert ledger.replies(judge).filter(pl.col("image_id") == "b.png")["text"].str.len_chars().min() > 0


def test_a_whole_judge_is_read_in_blocks(ledger):
    """More rows than one block give one table, in order."""
    judge = ledger.enrol(CARD, NIH_QUESTIONS, "nih")
    run = ledger.begin(judge, {}, {})
    replies = [Reply(outcome="answered", logit=0.0, usage=Usage(prompt=1)) for _ in NIH_QUESTIONS]
    judgments = [Judgment(subject=f, about="finding", outcome="answered", p_present=0.5) for f in NIH.findings]
    films = [
        AskedFilm(image_id=f"{n:05d}", sha256=str(n), replies=replies, judgments=judgments) for n in range(4000, 0, -1)
    ]
    ledger.write(judge, run, films)
    table = ledger.judgments(judge, NIH)
    assert table.height == 4000 * 14
    assert table["image_id"].is_sorted()
    assert table.head(14)["finding"].to_list() == list(NIH.findings)


def test_verify_finds_what_does_not_add_up(ledger):
    """A film that lost a reply or a judgment, or whose sums are not its replies', is named."""
    judge, run = enrolled(ledger)
    ledger.write(judge, run, [asked(f"{n}.png") for n in range(4)])
    assert ledger.verify() == []
    for harm in (
        "DELETE FROM reply WHERE film_id = 1 AND number = 3",
        "DELETE FROM judgment WHERE film_id = 2 AND number = 0",
        "UPDATE film SET failed = 1 WHERE film_id = 3",
    ):
        with ledger.writing() as connection:
            connection.exec_driver_sql(harm)
    found = ledger.verify()
    assert len(found) == 3
    assert [name in " ".join(found) for name in ("'0.png'", "'1.png'", "'2.png'", "'3.png'")] == [
        True,
        True,
        True,
        False,
    ]


def test_the_card_is_kept_as_it_was(ledger):
    """What the ledger holds of a judge can be read by any client of the database."""
    enrolled(ledger)
    ((text,),) = rows(ledger, "SELECT card FROM judge")
    assert json.loads(text) == json.loads(json.dumps(JudgeCard.as_dict(CARD)))
