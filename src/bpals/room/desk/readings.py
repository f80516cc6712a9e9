"""A reading: what a reader writes and what can be kept of it, what the desk hands over, and its row in the ledger."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, func, literal, literal_column, select, update

from bpals.errors import NotYours, Refused, StaleVersion
from bpals.room.desk.study import Account, Study, Unmarked
from bpals.store.ledger.backend import Ready
from bpals.store.ledger.log import ROOM, Log, recall
from bpals.store.ledger.schema import ACCOUNT, CASE, DRAWN, READING, REVIEW, VERDICTS, now

Verdict = Literal["present", "absent", "uncertain", "unreadable"]
Quality = Literal["good", "limited", "unreadable"]
Devices = Literal["present", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Where a finding is, in pixels of the film."""

    finding: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is written of one case; a finding that is not among the verdicts has none yet."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    confidence: Mapping[str, int] = field(default_factory=dict)  # 0 to 100, by finding; nobody must give one
    boxes: tuple[Box, ...] = ()
    note: str = ""
    quality: Quality | None = None
    devices: Devices | None = None

    def as_json(self) -> str:
        """Write it as the ledger keeps it: the same answer gives the same text."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Answer:
        """Read what the ledger kept."""
        kept = json.loads(text)
        return cls(**{**kept, "boxes": tuple(Box(**box) for box in kept["boxes"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds on a case, as the browser counted them; the room bounds them by its own clock."""

    active_s: float  # with the page visible and a key or pointer moved in the last minute
    wall_s: float


State = Literal["leased", "locked", "done", "skipped", "released"]
ViewPhase = Literal["blind", "second", "done"]
WhyNone = Literal["", "empty", "read", "held", "skipped", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingView:
    """One reader's reading of one case, as it stands."""

    reading_id: str  # random: it may stand in an address
    case_id: int  # never sent to a blind reader: a hidden repeat has the case of the first reading
    case_no: int  # 1, 2, ... in the order in which this reader was handed them
    image_id: str  # never sent to a blind reader
    findings: tuple[str, ...]
    state: State
    version: int
    answer: Answer
    phase: ViewPhase  # what may be written now: the blind read, the second one after the reveal, or nothing more
    revealed: bool  # true where this reader may see label, judges and trust
    signal: str | None = None  # version of the signal that was revealed


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindRead:
    """What is stored of a blind read: a verdict on every finding that was asked, also on those left unmarked."""

    verdicts: Mapping[str, Verdict]
    quality: Quality | None
    devices: Devices | None
    second: Mapping[str, Verdict] | None = None  # what is stored after the reveal, apart from the blind read


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedReading:
    """A reading that its reader has finished, in few words: their own verdicts, and nothing else."""

    reading_id: str
    case_no: int
    locked: float  # seconds since 1970, by the database's clock
    marked: Mapping[str, Verdict]  # finding -> verdict, as it stands now; what was left unmarked is not among them
    quality: Quality | None
    amended: bool
    blind: Mapping[str, Verdict]  # finding -> verdict as stored of the blind read, also where it was left unmarked
    second: Mapping[str, Verdict] | None  # the same of the second read; None where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What a reader reads now, what comes next, and why there is nothing where there is nothing."""

    current: ReadingView | None
    ahead: tuple[ReadingView, ...] = ()
    of: int = 0  # about how many cases the reader will be handed, hidden repeats among them
    why_none: str = ""  # one sentence for the reader
    why_code: WhyNone = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The receipt: it is durable. The same key again gives the same receipt."""

    version: int
    reply: Mapping[str, Any]  # what was answered, as JSON: `reading_id` or `case_id`, `version`, `state`
    view: ReadingView | None = None  # the reading as it stands now, where the page goes on with it
    read: BlindRead | None = None  # what is stored of it, once its second read may be given


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """The opinion of one reader on a disputed finding, without a name."""

    reader: str  # `Reader 1`, `Reader 2`: the order is another in every case
    verdict: Verdict
    confidence: int | None = None
    boxes: tuple[Box, ...] = ()
    note: str = ""
    round: int = 0  # 0 for the blind read, then the rounds of a discussion
    yours: bool = False
    amended: Verdict | None = None  # the reader's verdict since, after label and trust were seen: it does not vote


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """One finding about which readers differ."""

    finding: str
    opinions: tuple[Opinion, ...]  # the newest of each reader
    earlier: tuple[Opinion, ...] = ()  # their opinions in the rounds before


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One case that readers read differently, as one moment saw it."""

    case_id: int
    image_id: str  # never sent to a reader in a discussion: the film is fetched by case
    disputes: tuple[Dispute, ...]
    # reading_id -> the last review of its reader: sent back with the verdict, so that nothing newer is overlooked.
    pinned: Mapping[str, int] = field(default_factory=dict)
    round: int = 0  # of a discussion: the round that is asked for now, from 1
    rounds: int = 0  # after how many the majority counts


NOTE_LETTERS = 10_000
KEY_LETTERS = 200
MOST_BOXES = 200
MOST_PIXELS = 100_000  # no film is wider: a box beyond is no box
QUALITIES, DEVICES = get_args(Quality), get_args(Devices)


def check_answer(answer: Answer, findings: Collection[str]) -> None:
    """Refuse an answer about another finding, or with a value that does not exist."""
    _check_verdicts(answer.verdicts, findings)
    for finding, confidence in answer.confidence.items():
        _check_finding(finding, findings, "a confidence")
        if not isinstance(confidence, int) or isinstance(confidence, bool) or not 0 <= confidence <= 100:
            raise Refused(f"the confidence of {finding} is {confidence!r}; it is a whole number from 0 to 100")
    _check_boxes(answer, findings)
    check_text(answer.note, "the note")
    if answer.quality is not None and answer.quality not in QUALITIES:
        raise Refused(f"the quality of the film is {answer.quality!r}; it is {', '.join(QUALITIES)} or not given")
    if answer.devices is not None and answer.devices not in DEVICES:
        raise Refused(f"devices is {answer.devices!r}; it is {' or '.join(DEVICES)} or not given")


def check_text(written: object, what: str) -> None:
    """Refuse a text that is too long or that one of the databases cannot keep."""
    if not isinstance(written, str):
        raise Refused(f"{what} is no text")
    if len(written) > NOTE_LETTERS:
        raise Refused(f"{what} has {len(written):,} characters; {NOTE_LETTERS:,} are kept. Shorten it")
    if "\0" in written or any("\ud800" <= letter <= "\udfff" for letter in written):
        raise Refused(f"{what} has a character that cannot be kept (U+0000 or half of a pair). Write it again")


def check_reason(reason: object) -> str:
    """Refuse an amendment without a reason."""
    check_text(reason, "the reason")
    written = str(reason).strip()
    if not written:
        raise Refused("a read that is locked is amended with a reason only. Write why")
    return written


def check_key(key: object) -> None:
    """Refuse a request that cannot be told from another one."""
    if not isinstance(key, str) or not 1 <= len(key) <= KEY_LETTERS or not key.isprintable():
        raise Refused(f"every change carries a key of 1 to {KEY_LETTERS} printable characters, a new one each time")


def check_spent(spent: Spent) -> None:
    """Refuse seconds that are none."""
    for name, seconds in (("active_s", spent.active_s), ("wall_s", spent.wall_s)):
        if not _is_number(seconds) or seconds < 0:
            raise Refused(f"{name} is {seconds!r}; it is seconds, 0 or more")


def complete(answer: Answer, findings: Collection[str], unmarked: Unmarked) -> dict[str, Verdict]:
    """Give the verdict on every finding; what is not marked means what the study says."""
    missing = [finding for finding in findings if finding not in answer.verdicts]
    if missing and unmarked == "ask":
        raise Refused(f"no verdict on {', '.join(missing)}: this study asks for each. Mark them, then lock")
    # Of a film that nobody can read, nothing is known to be absent.
    otherwise: Verdict = "unreadable" if answer.quality == "unreadable" else "absent"
    return {finding: answer.verdicts.get(finding, otherwise) for finding in findings}


def complete_verdicts(verdicts: Mapping[str, Any], findings: Collection[str]) -> None:
    """Refuse verdicts that leave out a disputed finding or speak of another."""
    _check_verdicts(verdicts, findings)
    if missing := [finding for finding in findings if finding not in verdicts]:
        raise Refused(f"no verdict on {', '.join(missing)}: every disputed finding needs one")


def _check_verdicts(verdicts: Mapping[str, Any], findings: Collection[str]) -> None:
    for finding, verdict in verdicts.items():
        _check_finding(finding, findings, "a verdict")
        if verdict not in VERDICTS:
            raise Refused(f"the verdict on {finding} is {verdict!r}; it is one of {', '.join(VERDICTS)}")


def _check_boxes(answer: Answer, findings: Collection[str]) -> None:
    if len(answer.boxes) > MOST_BOXES:
        raise Refused(f"{len(answer.boxes):,} boxes are more than the {MOST_BOXES} that a case keeps")
    for box in answer.boxes:
        _check_finding(box.finding, findings, "a box")
        sides = (box.x, box.y, box.width, box.height)
        inside = all(_is_number(side) and 0 <= side <= MOST_PIXELS for side in sides)
        if not inside or box.width <= 0 or box.height <= 0:
            raise Refused(
                f"the box of {box.finding} is {list(sides)}; x, y are 0 or more, width and height above 0, "
                f"all at most {MOST_PIXELS:,} pixels"
            )


def _check_finding(finding: object, findings: Collection[str], what: str) -> None:
    if finding not in findings:
        raise Refused(f"{what} is given on {finding!r}, which this case does not ask. It asks: {', '.join(findings)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction at the desk: what every step of it works with."""

    connection: Connection
    study: Study
    study_id: int
    account: Account
    now: float  # seconds, by the database's clock: never this machine's
    log: Log

    @property
    def lease_end(self) -> float:
        """When a case that is handed out now goes back."""
        return self.now + 60 * self.study.lease_minutes

    @property
    def mine(self) -> dict[str, int]:
        """What a statement with MINE in it is run with."""
        return {"study": self.study_id, "reader": self.account.account_id}

    @property
    def live(self) -> ColumnElement[bool]:
        """The cases of the study that are not withdrawn."""
        return and_(CASE.c.study_id == self.study_id, CASE.c.withdrawn == 0)

    def findings_of(self, case_ids: Collection[int]) -> dict[int, tuple[str, ...]]:
        """Give the findings that each case asks, in the order of the study."""
        if self.study.asks == "all":
            return dict.fromkeys(case_ids, self.study.findings)
        named: dict[int, set[str]] = {case_id: set() for case_id in case_ids}
        drawn = select(DRAWN.c.case_id, DRAWN.c.finding).where(DRAWN.c.case_id.in_(list(case_ids)))
        for case_id, finding in self.connection.execute(drawn):
            named[case_id].add(finding)
        return {case_id: tuple(f for f in self.study.findings if f in asked) for case_id, asked in named.items()}

    def note(self, action: str, detail: Mapping[str, Any], *, reading_id: str | None = None) -> None:
        """Write down what the rules or the clock did."""
        entry = {**detail, "study": self.study_id}
        self.log.append(actor=ROOM, action=action, detail=entry, reading_id=reading_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks to be changed, with the key by which the same request is known again."""

    action: str
    subject: str  # the reading, or the case
    key: str
    content: str = ""  # the same key with another content is another request, and refused

    @property
    def digest(self) -> str:
        """Tell this request from any other."""
        text = f"{self.action}\0{self.subject}\0{self.content}"
        # A text that no database keeps is refused later, in words; here it is only told from others.
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def own_key(self, tx: Transaction) -> str:
        """The key, among the keys of this person: another's does not answer here."""
        return f"{tx.account.account_id}:{self.key}"

    def done_before(self, tx: Transaction) -> Saved | None:
        """Give the receipt of this request if it was done already."""
        check_key(self.key)
        entry = recall(tx.connection, self.own_key(tx))
        if entry is None:
            return None
        if json.loads(entry.detail).get("request") != self.digest or entry.reply is None:
            raise Refused(f"the key {self.key!r} was used for another request. Send a new key with every change")
        reply = json.loads(entry.reply)
        return Saved(version=reply["version"], reply=reply)

    def finish(
        self, tx: Transaction, reply: Mapping[str, Any], detail: Mapping[str, Any], *, reading_id: str | None = None
    ) -> Saved:
        """Write the entry with the reply, and give the receipt."""
        tx.log.append(
            actor=tx.account.name,
            action=self.action,
            detail={**detail, "request": self.digest, "study": tx.study_id},
            reading_id=reading_id,
            key=self.own_key(tx),
            reply=reply,
        )
        return Saved(version=int(reply["version"]), reply=dict(reply))


WHOLE = select(
    READING, CASE.c.image_id, CASE.c.batch, CASE.c.wanted, CASE.c.taken, CASE.c.stage, CASE.c.round
).join_from(READING, CASE, READING.c.case_id == CASE.c.case_id)
"""A reading with what is needed of its case."""

ONE_READING = Ready(WHOLE.where(READING.c.reading_id == bindparam("wanted_id")))
MINE = and_(READING.c.study_id == bindparam("study"), READING.c.account_id == bindparam("reader"))
IS_LOCKED = READING.c.state.in_([literal("locked"), literal("done")])
FIRST_TIME = READING.c.slot.not_like("repeat %")  # not a hidden repeat

_SLOTS = Ready(select(READING.c.slot).where(READING.c.case_id == bindparam("of_case")))
_BY_ID = update(READING).where(READING.c.reading_id == bindparam("changed_id"))
_TAKEN = Ready(
    update(CASE).where(CASE.c.case_id == bindparam("of_case")).values(taken=CASE.c.taken + bindparam("more"))
)


def find(tx: Transaction, reading_id: str) -> Any:
    """Give a reading of this person; another's is answered as if there were none."""
    # Ours are plain letters; what else an address can hold, a database may choke on.
    plain = reading_id.isascii() and reading_id.isprintable()
    row = ONE_READING.first(tx.connection, wanted_id=reading_id) if plain else None
    if row is None or row.account_id != tx.account.account_id or row.study_id != tx.study_id:
        raise NotYours("you have no such reading. Ask for your next case")
    return row


def show(tx: Transaction, row: Row[Any]) -> ReadingView:
    """Give one reading as its reader sees it."""
    return show_all(tx, [row])[0]


def show_all(tx: Transaction, rows: Sequence[Row[Any]]) -> list[ReadingView]:
    """Give readings as their reader sees them."""
    findings = tx.findings_of({row.case_id for row in rows})
    phases: dict[str, ViewPhase] = {"leased": "blind", "released": "blind"}
    if tx.study.reveal:
        phases["locked"] = "second"
    return [
        ReadingView(
            reading_id=row.reading_id,
            case_id=row.case_id,
            case_no=row.position + 1,
            image_id=row.image_id,
            findings=findings[row.case_id],
            state=row.state,
            version=row.version,
            answer=Answer.from_json(row.answer),
            phase=phases.get(row.state, "done"),
            revealed=is_revealed(tx, row),
            signal=row.signal,
        )
        for row in rows
    ]


def is_revealed(tx: Transaction, row: Row[Any]) -> bool:
    """Say whether this reader may see label, judges and trust of the film: after the lock, in a study that reveals."""
    return tx.study.reveal and row.state in {"locked", "done"}


def is_final(tx: Transaction, row: Row[Any]) -> bool:
    """Say whether the blind read stands for good: where nothing is revealed, the last lock can still be undone."""
    return row.state == "done" or (row.state == "locked" and tx.study.reveal)


def check_version(tx: Transaction, row: Row[Any], version: int) -> None:
    """Refuse a change of what was changed meanwhile."""
    if row.version != version:
        raise StaleVersion(
            f"this case was changed elsewhere: you have version {version}, and {row.version} is saved. "
            "Look at both, then save again",
            show(tx, row),
        )


def change(tx: Transaction, row: Row[Any], **values: Any) -> int:
    """Change a reading, and give its new version."""
    version = int(row.version) + 1
    move(tx, row.reading_id, version=version, **values)
    return version


def move(tx: Transaction, reading_id: str, **values: Any) -> None:
    """Change where a reading stands, and nothing that its reader wrote: its version stays."""
    named = {f"new_{column}": value for column, value in values.items()}
    _setting(*sorted(values)).run(tx.connection, changed_id=reading_id, **named)


@functools.cache
def _setting(*columns: str) -> Ready:
    # Once for each set of columns: making a statement takes longer than running it.
    return Ready(_BY_ID.values({column: bindparam(f"new_{column}") for column in columns}))


def is_repeat(row: Row[Any]) -> bool:
    """Say whether the reader has read this film before."""
    return str(row.slot).startswith("repeat ")


def free_slot(tx: Transaction, case_id: int, wanted: int) -> str | None:
    """Give the lowest place that is free among those a case wants; none if it has its readers."""
    held = {slot for (slot,) in _SLOTS.rows(tx.connection, of_case=case_id)}
    return next((str(number) for number in range(1, wanted + 1) if str(number) not in held), None)


def count_taken(tx: Transaction, case_id: int, more: int) -> None:
    """Count one reader more, or one fewer, of a case."""
    _TAKEN.run(tx.connection, of_case=case_id, more=more)


def give_back(tx: Transaction, row: Row[Any], state: str) -> None:
    """Let another reader have the case; what was written stays with its writer."""
    if is_repeat(row):
        move(tx, row.reading_id, state=state)
        return
    move(tx, row.reading_id, state=state, slot=f"{state} {row.reading_id}")
    count_taken(tx, row.case_id, -1)


def take_again(tx: Transaction, row: Row[Any]) -> bool:
    """Lease a reading that was given back to the reader who began it, if its case still wants one."""
    slot = row.slot if is_repeat(row) else free_slot(tx, row.case_id, row.wanted)
    if slot is None:
        return False
    move(tx, row.reading_id, state="leased", slot=slot, held_until=tx.lease_end)
    if not is_repeat(row):
        count_taken(tx, row.case_id, 1)
    return True


def shuffled(seed: int, *names: object) -> str:
    """Give a text by which things are ordered as if at random, and the same way each time."""
    return hashlib.sha256("\0".join(map(str, (seed, *names))).encode()).hexdigest()


def review_row(tx: Transaction, row: Row[Any], phase: str, **values: Any) -> dict[str, Any]:
    """Give what all reviews of one reading and phase have in common; finding and verdict are added."""
    return {
        "study_id": tx.study_id,
        "reading_id": row.reading_id,
        "image_id": row.image_id,
        "reader": tx.account.name,
        "phase": phase,
        "round": 0,
        "repeat": int(is_repeat(row)),
        "position": row.position,
        "source": "room",
        "at": now(),
        **values,
    }


# Literally the condition of the index `case_open`, so that both databases use it.
STILL_OPEN = (CASE.c.withdrawn == literal_column("0")) & (CASE.c.taken < CASE.c.wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Cases and readings of a study, counted."""

    cases: int  # not withdrawn
    wanted: int  # readings that they take
    taken: int  # of those, held or done
    complete: int  # cases with all their readers
    disputed: int
    settled: int
    locked: int  # readings whose blind read is stored, hidden repeats left out
    repeats: int  # hidden repeats whose blind read is stored
    readers: Mapping[str, int]  # name -> locked readings, repeats among them
    imported: int  # reviews that were brought in from files


def count(connection: Connection, study_id: int) -> Counts:
    """Count a study."""
    stage = CASE.c.stage
    cases = connection.execute(
        select(
            func.count().label("cases"),
            func.coalesce(func.sum(CASE.c.wanted), 0).label("wanted"),
            func.coalesce(func.sum(CASE.c.taken), 0).label("taken"),
            func.count().filter(CASE.c.taken >= CASE.c.wanted).label("complete"),
            func.count().filter(stage == "disputed").label("disputed"),
            func.count().filter(stage == "settled").label("settled"),
        ).where(CASE.c.study_id == study_id, CASE.c.withdrawn == 0)
    )
    locked = connection.execute(
        select(ACCOUNT.c.name, func.count().filter(FIRST_TIME), func.count().filter(~FIRST_TIME))
        .join_from(READING, ACCOUNT, READING.c.account_id == ACCOUNT.c.account_id)
        .where(READING.c.study_id == study_id, IS_LOCKED)
        .group_by(ACCOUNT.c.name)
        .order_by(ACCOUNT.c.name)
    ).all()
    imported = select(func.count()).where(REVIEW.c.phase == "imported")
    return Counts(
        **{name: int(number) for name, number in cases.mappings().one().items()},
        locked=sum(first for _, first, _ in locked),
        repeats=sum(repeated for _, _, repeated in locked),
        readers={name: first + repeated for name, first, repeated in locked},
        imported=int(connection.execute(imported).scalar_one()),
    )
