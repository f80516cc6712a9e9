"""The tables of the ledger, in types that SQLite and PostgreSQL both have.

judge      a judge: its name, card and dataset
question   the questions of a judge, in order; the number is half of a reply's key
run        one start of the command: its plan, environment and end
film       one image with all its replies, or one control; with the sums of its replies
reply      one question about one image
judgment   the combined replies about one subject of an image; `number` is that of its first question
attempt    one failed try; it stays when a later try succeeds
event      what happened to a run: a limit moved, a server restarted
migration  the numbered changes of these tables that were made

A change here needs a new migration in `backend.py`: a test holds the text that makes the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

from bpals.types import OUTCOME, VERDICT

# SQLite's application id of a ledger, and the first half of every advisory lock on PostgreSQL: `bpal`.
LEDGER_ID = 0x6270616C

TABLES = MetaData()


def now() -> str:
    """Give the wall clock for a column `at`: for display only, order is that of the numbers."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


OUTCOMES: tuple[str, ...] = tuple(OUTCOME.categories)

# SQLite counts up by itself only in a column that is plainly INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")


def _columns(kind: type[TypeEngine[Any]], *names: str, nullable: bool = False) -> Iterator[Column[Any]]:
    return (Column(name, kind, nullable=nullable) for name in names)


def _one_of(column: str, words: Sequence[str]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(word) for word in words)})")


MIGRATION = Table(
    "migration",
    TABLES,
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_columns(Text, "name", "bpals", "at"),
)

JUDGE = Table(
    "judge",
    TABLES,
    Column("judge_id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    *_columns(Text, "fingerprint", "dataset", "card", "observed", "at"),
)

QUESTION = Table(
    "question",
    TABLES,
    Column("judge_id", _Id, ForeignKey("judge.judge_id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_columns(Text, "subject", "about", "polarity", "wording", "text", "sha256"),
)

RUN = Table(
    "run",
    TABLES,
    Column("run_id", _Id, primary_key=True),
    Column("judge_id", _Id, ForeignKey("judge.judge_id"), nullable=False),
    *_columns(Text, "plan", "environment", "state", "counts", "began"),
    Column("ended", Text),
)

FILM = Table(
    "film",
    TABLES,
    Column("film_id", _Id, primary_key=True),
    Column("judge_id", _Id, ForeignKey("judge.judge_id"), nullable=False),
    Column("run_id", _Id, ForeignKey("run.run_id"), nullable=False),
    *_columns(Text, "image_id", "control", "sha256"),
    *_columns(Integer, *OUTCOMES),
    *_columns(BigInteger, "prompt_tokens", "cached_tokens", "output_tokens"),
    Column("latency_ms", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("at", Text, nullable=False),
    UniqueConstraint("judge_id", "image_id", "control"),
)

REPLY = Table(
    "reply",
    TABLES,
    Column("film_id", _Id, ForeignKey("film.film_id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("outcome", Text, nullable=False),
    *_columns(Double, "logit", "mass", nullable=True),
    Column("method", Text, nullable=False),
    *_columns(Integer, "prompt_tokens", "cached_tokens", "output_tokens"),
    Column("latency_ms", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("why", Text),
    Column("raw", LargeBinary),
    _one_of("outcome", OUTCOMES),
    CheckConstraint("(outcome = 'answered') = (logit IS NOT NULL)"),
)

JUDGMENT = Table(
    "judgment",
    TABLES,
    Column("film_id", _Id, ForeignKey("film.film_id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("outcome", Text, nullable=False),
    *_columns(Double, "p_present", "logit_present", "logit_absent", "mass", nullable=True),
    Column("why", Text),
    _one_of("outcome", OUTCOMES),
    CheckConstraint("(outcome = 'answered') = (p_present IS NOT NULL)"),
    CheckConstraint("p_present BETWEEN 0 AND 1"),
    # Small rows that are read image by image: without a rowid they lie side by side.
    sqlite_with_rowid=False,
)

ATTEMPT = Table(
    "attempt",
    TABLES,
    Column("film_id", _Id, ForeignKey("film.film_id"), primary_key=True, autoincrement=False),
    Column("run_id", _Id, ForeignKey("run.run_id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("status", Integer),
    *_columns(Text, "message", "at"),
)

EVENT = Table(
    "event",
    TABLES,
    Column("event_id", _Id, primary_key=True),
    Column("run_id", _Id, ForeignKey("run.run_id"), nullable=False),
    *_columns(Text, "kind", "detail", "at"),
)

REVIEW_TABLES = MetaData()

VERDICTS: tuple[str, ...] = tuple(VERDICT.categories)
ROLES = ("reader", "adjudicator", "admin")
# leased: being read blind; locked: blind read stored, revealed where the study reveals; done: complete.
STATES = ("leased", "locked", "done", "skipped", "released")
# Of a case: still being read, or read alike by all; readers differ; their differences are settled.
STAGES = ("reading", "disputed", "settled")
PHASES = ("blind", "second", "amended", "round", "imported")
HOW = ("consensus", "majority", "adjudicator")
_OPEN = text("taken < wanted AND withdrawn = 0")

STUDY = Table(
    "study",
    REVIEW_TABLES,
    Column("study_id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("settings", Text, nullable=False),  # the study as JSON
    Column("stopped", Text),  # why no more cases are begun; null while the study goes on
    Column("at", Text, nullable=False),
)

ACCOUNT = Table(
    "account",
    REVIEW_TABLES,
    Column("account_id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("password", Text),  # an argon2id hash; null where one enters by a link or by OIDC
    Column("totp", Text),  # the secret of the second factor
    Column("subject", Text, unique=True),  # who it is for the OIDC provider: issuer and subject
    Column("disabled", Integer, nullable=False, default=0),
    Column("at", Text, nullable=False),
    _one_of("role", ROLES),
)

SESSION = Table(
    "session",
    REVIEW_TABLES,
    Column("token", Text, primary_key=True),  # sha256 of the cookie
    Column("account_id", _Id, ForeignKey("account.account_id"), nullable=False),
    Column("began", Double, nullable=False),  # seconds, by the database's clock, as all Double times here
    *_columns(Double, "seen", "ends"),
)

LINK = Table(
    "link",
    REVIEW_TABLES,
    Column("token", Text, primary_key=True),  # sha256 of what the link carries
    Column("account_id", _Id, ForeignKey("account.account_id"), nullable=False),
    Column("ends", Double, nullable=False),
    Column("used", Integer, nullable=False, default=0),
)

BATCH = Table(
    "batch",
    REVIEW_TABLES,
    Column("study_id", _Id, ForeignKey("study.study_id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("signal", Text, nullable=False),  # version of the signal it was drawn from: sha256 of signal.parquet
    Column("at", Text, nullable=False),
)

CASE = Table(
    "review_case",  # `case` is a word of SQL
    REVIEW_TABLES,
    Column("case_id", _Id, primary_key=True),
    Column("study_id", _Id, ForeignKey("study.study_id"), nullable=False),
    Column("batch", Integer, nullable=False),
    Column("image_id", Text, nullable=False),
    Column("patient_id", Text),
    Column("wanted", Integer, nullable=False),  # readers it takes; grows where a third is called
    Column("taken", Integer, nullable=False, default=0),  # readers that hold it or have read it
    Column("withdrawn", Integer, nullable=False, default=0),  # 1: not offered any more, a later batch stands instead
    Column("stage", Text, nullable=False, default="reading"),
    Column("round", Integer, nullable=False, default=0),  # of the discussion: the one that is asked for now
    UniqueConstraint("study_id", "image_id", "batch"),
    # Only cases that still take a reader: so the next case is found as fast at the end of a study as at its start.
    Index("case_open", "study_id", "batch", "case_id", sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("case_stage", "study_id", "stage"),
    _one_of("stage", STAGES),
)

DRAWN = Table(
    "drawn",
    REVIEW_TABLES,
    Column("case_id", _Id, ForeignKey("review_case.case_id"), primary_key=True, autoincrement=False),
    Column("finding", Text, primary_key=True),
    Column("how", Text, nullable=False),  # value or random
    Column("inclusion", Double),
)

READING = Table(
    "reading",
    REVIEW_TABLES,
    Column("reading_id", Text, primary_key=True),  # random, so that it can stand in an address
    Column("study_id", _Id, ForeignKey("study.study_id"), nullable=False),
    Column("case_id", _Id, ForeignKey("review_case.case_id"), nullable=False),
    Column("account_id", _Id, ForeignKey("account.account_id"), nullable=False),
    Column("slot", Text, nullable=False),  # "1", "2", ...: which of the wanted reads; "repeat NAME", "released ID"
    Column("position", Integer, nullable=False),  # how many cases this reader was handed before
    Column("state", Text, nullable=False),
    Column("version", Integer, nullable=False, default=0),  # counts up with every change
    Column("answer", Text, nullable=False),  # what is written so far, as JSON of review.answer.Answer
    Column("signal", Text),  # version of the signal that was revealed
    Column("held_until", Double, nullable=False),
    Column("began", Double, nullable=False),  # when it was handed out
    Column("locked", Double),
    UniqueConstraint("case_id", "slot"),
    Index("reading_of_reader", "study_id", "account_id", "state", "position"),
    Index("reading_in_order", "study_id", "account_id", "position"),
    Index("reading_of_case", "case_id"),
    Index("reading_once", "account_id", "case_id"),
    Index("reading_held", "study_id", "state", "held_until"),
    _one_of("state", STATES),
)

REVIEW = Table(
    "review",
    REVIEW_TABLES,
    Column("review_id", _Id, primary_key=True),
    Column("study_id", _Id, ForeignKey("study.study_id")),
    Column("reading_id", Text, ForeignKey("reading.reading_id")),
    Column("image_id", Text, nullable=False),
    Column("finding", Text, nullable=False),  # of the vocabulary, a group's name, or one outside of both
    *_columns(Text, "reader", "phase"),
    Column("round", Integer, nullable=False, default=0),  # of a discussion
    Column("repeat", Integer, nullable=False, default=0),  # 1: the reader has read this film before
    Column("verdict", Text, nullable=False),
    Column("confidence", Integer),  # 0 to 100
    Column("saw_signal", Integer, nullable=False, default=0),  # 1: label, judges and trust were on the screen
    Column("signal", Text),  # which version of them
    Column("inclusion", Double),
    Column("box", Text),  # [[x, y, width, height], ...] in pixels of the film
    Column("note", Text),
    Column("quality", Text),  # of the film: good, limited, unreadable
    Column("devices", Text),  # present or absent
    *_columns(Double, "active_s", "wall_s", nullable=True),
    Column("position", Integer),
    Column("source", Text, nullable=False),  # room, or the name and sha256 of a file
    Column("external_id", Text, unique=True),  # of a read that was brought in: brought in twice, it is one
    Column("at", Text, nullable=False),
    Index("review_of_pair", "image_id", "finding"),
    Index("review_of_reading", "reading_id"),
    _one_of("verdict", VERDICTS),
    _one_of("phase", PHASES),
)

ADJUDICATION = Table(
    "adjudication",
    REVIEW_TABLES,
    Column("adjudication_id", _Id, primary_key=True),
    Column("study_id", _Id, ForeignKey("study.study_id"), nullable=False),
    Column("case_id", _Id, ForeignKey("review_case.case_id"), nullable=False),
    *_columns(Text, "finding", "verdict", "how"),
    Column("round", Integer, nullable=False, default=0),
    Column("account_id", _Id, ForeignKey("account.account_id")),  # null where the rule settled it
    Column("pinned", Text, nullable=False),  # {reading_id: version} that were on the screen
    Column("note", Text),
    Column("at", Text, nullable=False),
    UniqueConstraint("case_id", "finding"),
    _one_of("verdict", VERDICTS),
    _one_of("how", HOW),
)

ENTRY = Table(
    "entry",
    REVIEW_TABLES,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Text, nullable=False),
    Column("actor", Text, nullable=False),  # an account's name, or `room`
    Column("action", Text, nullable=False),
    Column("reading_id", Text),
    Column("detail", Text, nullable=False),  # canonical JSON
    Column("key", Text, unique=True),  # of the request: sent twice, it is done once
    Column("reply", Text),  # what was answered, so that the second answer is the first
    *_columns(Text, "previous", "hash"),
)

# PostgreSQL only: whether a commit was made when its answer was lost on the way.
RECEIPTS = MetaData()
RECEIPT = Table(
    "receipt",
    RECEIPTS,
    Column("writer", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
)
