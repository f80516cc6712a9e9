"""The tables of the ledger, in types that SQLite and PostgreSQL both have.

judge     who was asked, under which name, about which dataset
question  what each film is asked, in order: its number is half of a reply's identity
run       one start of the command: its plan, surroundings and end
film      one film that a judge was wholly asked, or one control; with the sums of its replies
reply     one question asked of one film
judgment  what the replies about one subject of one film come to; `number` is that of its first question
attempt   one failed try; it stays when a later try succeeds
event     what happened to a run: limits moved, a server restarted
migration which numbered change of these tables was made, and by whom

A change here needs a new number in `migrations.py`: a test holds the text that makes the tables.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from bpals.types import OUTCOME

TABLES = MetaData()


def now() -> str:
    """Give the wall clock for a column `at`: for display only, order is that of the numbers."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


OUTCOMES: tuple[str, ...] = tuple(OUTCOME.categories)
_ONE_OF_SIX = f"outcome IN ({', '.join(repr(word) for word in OUTCOMES)})"

# SQLite counts up by itself only in a column that is plainly INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")

MIGRATION = Table(
    "migration",
    TABLES,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("bpals", Text, nullable=False),
    Column("at", Text, nullable=False),
)

JUDGE = Table(
    "judge",
    TABLES,
    Column("judge_id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("fingerprint", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("card", Text, nullable=False),
    Column("observed", Text, nullable=False),
    Column("at", Text, nullable=False),
)

QUESTION = Table(
    "question",
    TABLES,
    Column("judge_id", _Id, ForeignKey("judge.judge_id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("subject", Text, nullable=False),
    Column("about", Text, nullable=False),
    Column("polarity", Text, nullable=False),
    Column("wording", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("sha256", Text, nullable=False),
)

RUN = Table(
    "run",
    TABLES,
    Column("run_id", _Id, primary_key=True),
    Column("judge_id", _Id, ForeignKey("judge.judge_id"), nullable=False),
    Column("plan", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("counts", Text, nullable=False),
    Column("began", Text, nullable=False),
    Column("ended", Text),
)

FILM = Table(
    "film",
    TABLES,
    Column("film_id", _Id, primary_key=True),
    Column("judge_id", _Id, ForeignKey("judge.judge_id"), nullable=False),
    Column("run_id", _Id, ForeignKey("run.run_id"), nullable=False),
    Column("image_id", Text, nullable=False),
    Column("control", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    *(Column(outcome, Integer, nullable=False) for outcome in OUTCOMES),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
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
    Column("logit", Double),
    Column("mass", Double),
    Column("method", Text, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("latency_ms", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("why", Text),
    Column("raw", LargeBinary),
    CheckConstraint(_ONE_OF_SIX),
    CheckConstraint("(outcome = 'answered') = (logit IS NOT NULL)"),
)

JUDGMENT = Table(
    "judgment",
    TABLES,
    Column("film_id", _Id, ForeignKey("film.film_id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("outcome", Text, nullable=False),
    Column("p_present", Double),
    Column("logit_present", Double),
    Column("logit_absent", Double),
    Column("mass", Double),
    Column("why", Text),
    CheckConstraint(_ONE_OF_SIX),
    CheckConstraint("(outcome = 'answered') = (p_present IS NOT NULL)"),
    CheckConstraint("p_present BETWEEN 0 AND 1"),
    # Small rows that are read film by film: without a rowid they lie side by side.
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
    Column("message", Text, nullable=False),
    Column("at", Text, nullable=False),
)

EVENT = Table(
    "event",
    TABLES,
    Column("event_id", _Id, primary_key=True),
    Column("run_id", _Id, ForeignKey("run.run_id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("at", Text, nullable=False),
)
