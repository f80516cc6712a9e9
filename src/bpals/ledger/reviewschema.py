"""The tables of the reading room, in types that SQLite and PostgreSQL both have.

study         one reading study: its settings, as they were when it began
account       who may enter, and as what
session       who is in; a token is kept as its hash
link          login links that may be used once
batch         cases that were drawn together, from one version of the signal
case          one film to be read in a study
drawn         the pairs for which a case was drawn, each with its chance: never shown to a reader
reading       one reader's reading of one case: where it stands, and what is written so far
review        what one expert said of one pair: read here, or brought in from a file; never changed
adjudication  what a disagreement was settled to, and how
entry         the log: everything that happened, each entry holding the hash of the one before

State is in `reading`; what was said and done is in `review`, `adjudication` and `entry`, which only grow.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from bpals.types import VERDICT

REVIEW_TABLES = MetaData()

VERDICTS: tuple[str, ...] = tuple(VERDICT.categories)
ROLES = ("reader", "adjudicator", "admin")
STATES = ("leased", "locked", "done", "skipped", "released")
"""leased: being read blind; locked: blind read stored, revealed where the study reveals; done: nothing more to say."""
STAGES = ("reading", "disputed", "settled")
"""Of a case: still being read, or read alike by all; readers differ; what they differed in is settled."""
PHASES = ("blind", "second", "amended", "round", "imported")
HOW = ("consensus", "majority", "adjudicator")


def _one_of(column: str, words: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(word) for word in words)})")


_OPEN = text("taken < wanted AND withdrawn = 0")

# SQLite counts up by itself only in a column that is plainly INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")

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
    Column("seen", Double, nullable=False),
    Column("ends", Double, nullable=False),
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
    # Cases that still take a reader: read ones leave it, so that the next case is found as fast at the end of a study.
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
    Column("reader", Text, nullable=False),
    Column("phase", Text, nullable=False),
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
    Column("active_s", Double),
    Column("wall_s", Double),
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
    Column("finding", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("how", Text, nullable=False),
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
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
)
