"""Desks for the tests, on a file and on a real PostgreSQL."""

import itertools
import uuid

import pytest

from bpals.room.desk.desk import Desk
from bpals.store.ledger import Ledger
from world import desks


@pytest.fixture(scope="session")
def _numbers():
    """Numbers, each once."""
    return itertools.count()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_ledger(request, tmp_path_factory):
    """A ledger that the tests of a file share, each with a study of its own: a file, then a PostgreSQL database."""
    if request.param == "sqlite":
        with Ledger.open(tmp_path_factory.mktemp("desk") / "ledger.sqlite") as ledger:
            yield ledger
        return
    address = request.getfixturevalue("postgres_address")
    import psycopg  # noqa: PLC0415 -- a core install has none

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    with Ledger.open(address.replace("/postgres?", f"/{name}?")) as ledger:
        yield ledger
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def open_desk(shared_ledger, _numbers):
    """Open a desk with readers of its own, and films drawn for it: give the desk, then the readers."""

    def open_(*names, cases=6, **settings):
        number = next(_numbers)
        desk = Desk.open(shared_ledger, desks.make_study(**({"name": f"study {number}"} | settings)))
        readers = desks.enter(shared_ledger, *(f"{name} {number}" for name in names))
        if cases:
            desk.draw(desks.films(cases), desks.SIGNAL)
        return desk, *readers

    return open_


@pytest.fixture
def desk_ledger(ledger_address):
    """A ledger of the test's own, which it may also damage."""
    with Ledger.open(ledger_address) as ledger:
        yield ledger
