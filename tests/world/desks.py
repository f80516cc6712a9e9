"""What the tests of the desk share: accounts in a ledger, made-up cases, and a reader who answers by rule."""

import itertools

import polars as pl
from sqlalchemy import insert, select, update

from bpals.findings import NIH
from bpals.room.desk.readings import Answer, Spent
from bpals.room.desk.study import Account, Study
from bpals.store.ledger.schema import ACCOUNT, READING

FINDINGS = ("Mass", "Nodule", "Pneumothorax")
SPENT = Spent(active_s=5.0, wall_s=8.0)
SIGNAL = "sha256:of-a-signal"
_KEYS = itertools.count()


def fresh_key():
    """A key that no request had before."""
    return f"key-{next(_KEYS)}"


def make_study(**settings):
    """A small study; what matters to a test is given by name."""
    plain = {"name": "study", "findings": FINDINGS, "batch": 10, "repeats": 0.0, "reveal": False}
    return Study(**(plain | settings))


def enter(ledger, *names, role="reader"):
    """Accounts with these names."""

    def work(connection):
        found = []
        for name in names:
            row = {"name": name, "role": role, "disabled": 0, "at": "2026-11-16T00:00:00.000+00:00"}
            added = connection.execute(insert(ACCOUNT).returning(ACCOUNT.c.account_id), [row]).scalar_one()
            found.append(Account(account_id=added, name=name, role=role))
        return found

    return ledger.change(work)


def films(n, *, finding="Mass", first=0, how="value", inclusion=0.25):
    """Drawn pairs: one finding of each of n films."""
    return pl.DataFrame(
        {
            "image_id": [f"film-{number:06}" for number in range(first, first + n)],
            "patient_id": [f"patient-{number:06}" for number in range(first, first + n)],
            "finding": [finding] * n,
            "how": [how] * n,
            "inclusion": [inclusion] * n,
        }
    )


def says(*present, **more):
    """An answer that marks some findings present."""
    return Answer(verdicts=dict.fromkeys(present, "present"), **more)


def lock(desk, account, view, answer=None, **more):
    """Lock a reading with a new key."""
    words = {"version": view.version, "key": fresh_key(), "answer": answer or says(), "spent": SPENT} | more
    return desk.lock(account, view.reading_id, **words)


def read(desk, account, answer=None):
    """Take the next case, lock it, and give the reading; the second read follows where the study reveals."""
    view = desk.next(account).current
    given = answer(view) if callable(answer) else answer or says()
    saved = lock(desk, account, view, given)
    if desk.study.reveal:
        words = {"version": saved.version, "key": fresh_key(), "answer": given, "spent": SPENT, "signal": SIGNAL}
        desk.second(account, view.reading_id, **words)
    return view


def read_all(desk, account, answer=None):
    """Read until nothing comes any more, and give the readings."""
    found = []
    while desk.next(account).current is not None:
        found.append(read(desk, account, answer))
    return found


def let_leases_end(ledger, account=None):
    """Do what an hour does: every lease, or one reader's, has ended by the database's clock."""
    which = update(READING).values(held_until=1.0)
    ledger.change(
        lambda connection: connection.execute(
            which if account is None else which.where(READING.c.account_id == account.account_id)
        )
    )


def rows(ledger, table, *columns):
    """Every row of a table, or some of its columns, in the order of its key."""
    wanted = select(*(columns or [table])).order_by(*table.primary_key.columns)
    return ledger.look(lambda connection: connection.execute(wanted).all())


ALL = NIH.findings
