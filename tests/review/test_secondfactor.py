"""The second factor: a code of the right time, once."""

import pyotp

from bpals.room.people.accounts import STEP_S, Accounts, SecondFactor
from bpals.store.ledger import Ledger


def test_a_code_works_for_a_clock_that_is_one_step_off_and_no_further():
    """Thirty seconds either way."""
    secret, now = pyotp.random_base32(), 1_000_000 * STEP_S
    app = pyotp.TOTP(secret)
    for off, right in ((-2, False), (-1, True), (0, True), (1, True), (2, False)):
        factor = SecondFactor(clock=lambda: now)
        assert factor.fits(1, secret, app.at(now + off * STEP_S)) is right


def test_a_code_that_was_taken_is_not_taken_again():
    """Nor one of before it; the next one is."""
    secret, now = pyotp.random_base32(), 1_000_000 * STEP_S
    app = pyotp.TOTP(secret)
    factor = SecondFactor(clock=lambda: now)
    assert factor.fits(1, secret, app.at(now))
    assert not factor.fits(1, secret, app.at(now))
    assert not factor.fits(1, secret, app.at(now - STEP_S))
    assert factor.fits(2, secret, app.at(now))
    assert factor.fits(1, secret, f" {app.at(now + STEP_S)} ")


def test_what_is_no_code_is_refused():
    """Letters, other digits, nothing."""
    factor, secret = SecondFactor(), pyotp.random_base32()
    for code in ("", "abcdef", "\u0661\u0662\u0663\u0664\u0665\u0666", "1" * 100, "\ud800"):
        assert not factor.fits(1, secret, code)


def test_an_app_can_read_the_address(tmp_path):
    """It names the account and the room."""
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        accounts = Accounts(ledger, b"")
        given = accounts.add_second_factor(accounts.make("anna", "reader"), "Reading room", by="test")
    read = pyotp.parse_uri(given)
    assert (read.name, read.issuer) == ("anna", "Reading room")
