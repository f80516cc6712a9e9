"""Passwords: hashed slowly, refused when anybody would guess them."""

import concurrent.futures
import statistics
import time

import pytest

from bpals.room.people.passwords import COMMON, Passwords, objection


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("short", "5 characters"),
        ("x" * 257, "257 characters"),
        ("aaaaaaaaaaab", "repeats"),
        ("Password2026!", "first that anybody"),
        ("p@ssw0rd!!!!", "first that anybody"),
        ("radiology2026", "first that anybody"),
        ("Sunshine!!11", "first that anybody"),
        ("welcomewelcome", "first that anybody"),
        ("qwertyuiop12", "row of the keyboard"),
        ("1q2w3e4r5t6y", "row of the keyboard"),
        ("abcdefghijkl", "row of the keyboard"),
        ("9876543210ab", "row of the keyboard"),
        ("anna-is-here-now", "account's name"),
    ],
)
def test_a_password_that_anybody_would_guess_is_refused(password, why):
    """With the digits and signs that people put around a word, and the letters they write as digits."""
    assert why in objection(password, "anna")


@pytest.mark.parametrize(
    "password", ["four plain words together", "kT9#vQ2m!xZr", "пять простых слов", "ein Röntgenbild um acht"]
)
def test_a_password_that_nobody_would_guess_is_taken(password):
    """In any script; length is what counts."""
    assert objection(password, "anna") == ""


def test_the_list_is_of_folded_words():
    """A word with a capital or a blank in it would never be found."""
    assert len(COMMON) > 300
    assert all(word == word.casefold().strip() for word in COMMON)


def test_a_password_is_the_same_however_it_is_composed():
    """An accent as one character or as two: keyboards differ."""
    passwords = Passwords()
    assert passwords.fits(passwords.hash("caf\u00e9 au lait"), "cafe\u0301 au lait")


def test_a_broken_hash_lets_nobody_in():
    """Whatever stands in the ledger."""
    passwords = Passwords()
    assert not passwords.fits("not a hash", "not a hash")
    assert not passwords.fits("", "")
    assert not passwords.fits(None, "nobody has this password")


def test_s08_where_there_is_no_password_it_takes_as_long():
    """S08: who guesses names cannot tell by the clock which of them exist."""
    passwords = Passwords()
    kept = passwords.hash("four plain words together")

    def seconds(hashed):
        began = time.perf_counter()
        passwords.fits(hashed, "wrong")
        return time.perf_counter() - began

    pairs = [(seconds(kept), seconds(None)) for _ in range(3)]
    there, absent = (statistics.median(column) for column in zip(*pairs, strict=True))
    assert 0.5 < there / absent < 2


def test_many_at_once_are_looked_at_two_at_a_time():
    """Each takes 32 MiB: guesses cannot eat the memory."""
    passwords = Passwords()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(lambda _: passwords.fits(None, "x"), range(4)))
