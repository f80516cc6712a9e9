"""C10: whatever readers, adjudicators, clocks and kills do in whatever order, the promises P1, P7 and P8 hold."""

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from bpals.errors import NotNow, NotYours, StaleVersion
from bpals.room.desk.desk import Desk
from bpals.room.desk.readings import Answer
from bpals.store.ledger import Ledger, log
from bpals.store.ledger.schema import CASE, READING, REVIEW
from world import desks

READERS = 3
WHO = st.integers(0, READERS - 1)
VERDICT = st.sampled_from(["present", "absent", "uncertain", "unreadable"])
ANSWER = st.builds(
    Answer,
    verdicts=st.dictionaries(st.sampled_from(desks.FINDINGS), VERDICT),
    note=st.sampled_from(["", "a note", "ä <b>"]),
)
PICK = st.integers(0, 10**6)
_NUMBERS = itertools.count()


@dataclass
class Known:
    """What a reader's browser was told of a reading, and so may rely on."""

    reader: int
    version: int = 0
    answer: Answer = field(default_factory=Answer)
    stored: int = 0
    """How many times reviews of it were acknowledged."""


class DeskMachine(RuleBasedStateMachine):
    """A study with three readers and an adjudicator, and what they were told."""

    def __init__(self, address):
        """Begin with nothing known."""
        super().__init__()
        self.address = address
        self.known = {}
        self.sent = []
        self.ledger = Ledger.open(address)

    @initialize(
        reveal=st.booleans(),
        rule_=st.sampled_from(["third", "discussion", "adjudicator", "none"]),
        asks=st.sampled_from(["all", "drawn"]),
        repeats=st.sampled_from([0.0, 0.5]),
    )
    def open_study(self, reveal, rule_, asks, repeats):
        """Open a study of its own in the ledger."""
        number = next(_NUMBERS)
        self.study = desks.make_study(
            name=f"machine {number}", reveal=reveal, adjudication=rule_, asks=asks, repeats=repeats, batch=3, rounds=2
        )
        self.readers = desks.enter(self.ledger, *(f"reader {number}-{which}" for which in range(READERS)))
        (self.judge,) = desks.enter(self.ledger, f"judge {number}", role="adjudicator")
        self.desk = Desk.open(self.ledger, self.study)
        self.desk.draw(desks.films(4), desks.SIGNAL)
        self.drawn = 4

    def teardown(self):
        """The log is whole, and says what the tables say."""
        try:
            assert log.check(self.ledger).found == []
        finally:
            self.ledger.close()

    def mine(self, who, pick):
        """One of a reader's readings."""
        own = [reading_id for reading_id, known in self.known.items() if known.reader == who]
        return own[pick % len(own)] if own else None

    def send(self, method, who, reading_id, **words):
        """Send a request with a new key, and remember it with its receipt; nothing if the state does not allow it."""
        known, key = self.known[reading_id], desks.fresh_key()
        call = {"version": known.version, "key": key, **words}
        try:
            saved = getattr(self.desk, method)(self.readers[who], reading_id, **call)
        except NotNow as refused:
            if "what you wrote is kept" in str(refused) and method == "lock":
                known.version, known.answer = known.version + 1, words["answer"]
            return None
        self.sent.append((method, who, reading_id, call, saved))
        known.version = saved.version
        known.answer = words.get("answer", known.answer)
        return saved

    @rule(who=WHO, ahead=st.integers(0, 2))
    def take(self, who, ahead):
        """Ask for the next case: it is one's own, as one left it, and blind until it is locked (P8)."""
        handed = self.desk.next(self.readers[who], ahead=ahead)
        for view in (handed.current, *handed.ahead) if handed.current else ():
            known = self.known.setdefault(view.reading_id, Known(who))
            assert known.reader == who
            assert (view.version, view.answer) == (known.version, known.answer)
            if view.state == "leased":
                assert not view.revealed
                assert view.signal is None

    @rule(who=WHO, pick=PICK, answer=ANSWER)
    def draft(self, who, pick, answer):
        """Write something."""
        if reading_id := self.mine(who, pick):
            answer = self.fit(who, reading_id, answer)
            self.send("draft", who, reading_id, answer=answer)

    def fit(self, who, reading_id, answer):
        """Leave out what the case does not ask."""
        asked = self.desk.reading(self.readers[who], reading_id).findings
        verdicts = {finding: verdict for finding, verdict in answer.verdicts.items() if finding in asked}
        return Answer(verdicts=verdicts, note=answer.note)

    @rule(who=WHO, pick=PICK, answer=ANSWER)
    def lock(self, who, pick, answer):
        """Lock a read; a locked one stays as it is."""
        if reading_id := self.mine(who, pick):
            answer = self.fit(who, reading_id, answer)
            if self.send("lock", who, reading_id, answer=answer, spent=desks.SPENT):
                self.known[reading_id].stored += 1

    @rule(who=WHO, pick=PICK, answer=ANSWER)
    def second(self, who, pick, answer):
        """Say it again after the reveal."""
        if reading_id := self.mine(who, pick):
            words = {"answer": self.fit(who, reading_id, answer), "spent": desks.SPENT, "signal": desks.SIGNAL}
            if self.send("second", who, reading_id, **words):
                self.known[reading_id].stored += 1

    @rule(who=WHO, pick=PICK, answer=ANSWER)
    def amend(self, who, pick, answer):
        """Correct a locked read."""
        if reading_id := self.mine(who, pick):
            answer = self.fit(who, reading_id, answer)
            if self.send("amend", who, reading_id, answer=answer, reason="a test"):
                self.known[reading_id].stored += 1

    @rule(who=WHO, pick=PICK, method=st.sampled_from(["skip", "undo"]))
    def skip_or_undo(self, who, pick, method):
        """Leave a case, or take back what was done."""
        if reading_id := self.mine(who, pick):
            self.send(method, who, reading_id)

    @rule(who=WHO, pick=PICK)
    def ask_for_the_reveal(self, who, pick):
        """Label and trust are noted as seen after the lock, and refused before (P8)."""
        if reading_id := self.mine(who, pick):
            reader = self.readers[who]
            allowed = self.study.reveal and self.desk.reading(reader, reading_id).state in {"locked", "done"}
            try:
                self.desk.note_reveal(reader, reading_id, desks.SIGNAL)
            except NotNow:
                assert not allowed
            else:
                assert allowed

    @rule(who=WHO, pick=PICK)
    def write_from_a_stale_tab(self, who, pick):
        """An old version overwrites nothing (P7)."""
        reading_id = self.mine(who, pick)
        if reading_id and self.known[reading_id].version:
            words = {"version": self.known[reading_id].version - 1, "key": desks.fresh_key()}
            with pytest.raises((StaleVersion, NotNow)):
                self.desk.draft(self.readers[who], reading_id, answer=Answer(note="stale"), **words)

    @rule(who=WHO, pick=PICK)
    def write_to_anothers(self, who, pick):
        """Nobody reads or writes another's reading (P8)."""
        others = [reading_id for reading_id, known in self.known.items() if known.reader != who]
        if others:
            reading_id = others[pick % len(others)]
            with pytest.raises(NotYours):
                self.desk.reading(self.readers[who], reading_id)
            with pytest.raises(NotYours):
                self.desk.draft(self.readers[who], reading_id, version=0, key=desks.fresh_key(), answer=Answer())

    @precondition(lambda self: self.sent)
    @rule(pick=PICK)
    def send_again(self, pick):
        """A browser that got no reply sends the same request again, however late: the same receipt (P7)."""
        method, who, reading_id, call, saved = self.sent[pick % len(self.sent)]
        assert getattr(self.desk, method)(self.readers[who], reading_id, **call) == saved

    @rule(everybody=st.booleans(), who=WHO)
    def let_leases_end(self, everybody, who):
        """An hour passes."""
        study = READING.c.study_id == self.desk.study_id
        which = study if everybody else study & (READING.c.account_id == self.readers[who].account_id)
        ended = READING.update().where(which).values(held_until=1.0)
        self.ledger.change(lambda connection: connection.execute(ended))

    @rule(who=WHO)
    def bring_back(self, who):
        """Ask for what one skipped."""
        self.desk.bring_back(self.readers[who])

    @rule(verdict=VERDICT)
    def adjudicate(self, verdict):
        """Settle what waits for the adjudicator."""
        shown = self.desk.adjudication_next(self.judge)
        if shown is not None:
            assert not any(reader.name in repr(shown) for reader in self.readers)
            verdicts = {dispute.finding: (verdict, "adjudicator") for dispute in shown.disputes}
            self.desk.adjudicate(
                self.judge, shown.case_id, pinned=shown.pinned, key=desks.fresh_key(), verdicts=verdicts
            )

    @rule(who=WHO, verdict=VERDICT)
    def answer_a_round(self, who, verdict):
        """Say what one thinks now of a disputed case."""
        reader = self.readers[who]
        shown = self.desk.round_next(reader)
        if shown is not None:
            verdicts = {dispute.finding: verdict for dispute in shown.disputes}
            words = {"round_": shown.round, "key": desks.fresh_key(), "verdicts": verdicts}
            self.desk.round_answer(reader, shown.case_id, **words)

    @rule(replace=st.booleans(), finding=st.sampled_from(desks.FINDINGS))
    def draw_more(self, replace, finding):
        """The queue follows the signal: an old film and a new one."""
        films = desks.films(2, first=self.drawn - 1, finding=finding)
        self.desk.draw(films, f"sha256:{self.drawn}", replace=replace)
        self.drawn += 1

    @rule()
    def kill(self):
        """The process is gone with all it had in memory; another opens the ledger."""
        self.ledger.close()
        self.ledger = Ledger.open(self.address)
        self.desk = Desk.open(self.ledger, self.study)

    @invariant()
    def what_was_acknowledged_is_there(self):
        """P1, P7: every receipt holds: version and answer as last told, and each stored read with all its rows."""
        if not self.known:
            return
        rows = self.ledger.look(
            lambda connection: connection.execute(select(READING).where(READING.c.study_id == self.desk.study_id)).all()
        )
        kept = {row.reading_id: (row.version, Answer.from_json(row.answer)) for row in rows}
        for reading_id, known in self.known.items():
            assert kept[reading_id] == (known.version, known.answer)
        said = select(REVIEW.c.reading_id, REVIEW.c.finding).where(
            REVIEW.c.study_id == self.desk.study_id, REVIEW.c.phase != "round"
        )
        written = [row.reading_id for row in self.ledger.look(lambda connection: connection.execute(said).all())]
        asked = {"all": len(desks.FINDINGS)}.get(self.study.asks)
        for reading_id, known in self.known.items():
            count = written.count(reading_id)
            assert count == known.stored * asked if asked else (count > 0) == (known.stored > 0)

    @invariant()
    def no_case_has_a_reader_too_many(self):
        """P7: places are taken once, are counted rightly, and are never more than wanted."""
        if not self.known:
            return

        def look(connection):
            cases = connection.execute(select(CASE).where(CASE.c.study_id == self.desk.study_id)).all()
            places = connection.execute(select(READING).where(READING.c.study_id == self.desk.study_id)).all()
            return cases, places

        cases, places = self.ledger.look(look)
        for case in cases:
            held = [row for row in places if row.case_id == case.case_id and row.slot.isdigit()]
            assert len(held) == case.taken <= case.wanted <= self.study.readers_per_case + 1
            assert {row.state for row in held} <= {"leased", "locked", "done"}
            assert len({row.account_id for row in held}) == len(held)


def run_machine(address, **limits):
    """Let hypothesis look for an order of steps that breaks a promise."""
    checks = settings(deadline=None, suppress_health_check=list(HealthCheck), **limits)
    run_state_machine_as_test(lambda: DeskMachine(address), settings=checks)


def test_c10_the_promises_hold_in_any_order(tmp_path):
    """C10, short: 10 studies of 25 steps, on a file."""
    run_machine(tmp_path / "ledger.sqlite", max_examples=10, stateful_step_count=25, derandomize=True)


@pytest.mark.sweep
def test_c10_the_promises_hold_in_many_orders(ledger_address):
    """C10, long: 150 studies of 60 steps, on a file and on PostgreSQL."""
    run_machine(ledger_address, max_examples=150, stateful_step_count=60)
