"""Where a room may be opened."""

from pathlib import Path

import pytest

from bpals.errors import UsageError
from bpals.room.desk.study import Account
from bpals.room.people.accounts import AccountCard
from bpals.room.web.server import Binding, check_binding, is_loopback

TLS = {"certificate": Path("room.crt"), "key": Path("room.key")}
PROXY = {"behind_proxy": "127.0.0.1", "public": "https://room.example.org"}


def card(**more):
    """An account as an admin sees it."""
    account = Account(account_id=1, name="anna", role="admin")
    return AccountCard(
        account=account, **({"password": True, "totp": False, "subject": None, "disabled": False, "at": ""} | more)
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_s15_on_this_machine_a_room_opens_at_once(host):
    """S15: nobody else can reach it; a login link lets its owner in."""
    assert is_loopback(host)
    check_binding(Binding(host=host), [])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.20", "room.example.org", "10.0.0.1"])  # noqa: S104
@pytest.mark.parametrize("cards", [[], [card(password=False)], [card(disabled=True)]])
def test_s15_elsewhere_it_does_not_open_without_accounts(host, cards):
    """S15: with TLS or without, and the message says what to type."""
    for more in ({}, TLS, PROXY):
        with pytest.raises(UsageError, match=r"OIDC.*bpals review account add"):
            check_binding(Binding(host=host, **more), cards)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.20", "room.example.org"])  # noqa: S104
def test_s15_elsewhere_it_does_not_open_without_tls(host):
    """S15: accounts alone are not enough: anybody on the way could listen."""
    with pytest.raises(UsageError, match=r"nothing encrypts.*--tls-cert"):
        check_binding(Binding(host=host), [card()])


def test_s15_with_accounts_and_tls_it_opens():
    """S15: with its own certificate, or behind a proxy that has one."""
    check_binding(Binding(host="192.168.1.20", **TLS), [card()])
    check_binding(Binding(host="0.0.0.0", public="https://room.example.org", **TLS), [card()])  # noqa: S104
    check_binding(Binding(**PROXY), [card()])
    check_binding(Binding(host="10.0.0.5", **PROXY), [card(password=False, subject="https://id sub:1")])


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        (Binding(certificate=Path("room.crt")), "both files"),
        (Binding(behind_proxy="127.0.0.1"), "--public-url https://HOST"),
        (Binding(behind_proxy="127.0.0.1", public="http://room.example.org"), "--public-url https://HOST"),
        (Binding(host="0.0.0.0", **TLS), "no address that a browser can open"),  # noqa: S104
    ],
)
def test_what_cannot_work_is_told_before_it_starts(binding, words):
    """Half a certificate, a proxy without a name, a name that is no name."""
    with pytest.raises(UsageError, match=words):
        check_binding(binding, [card()])


def test_the_origin_is_what_a_browser_writes():
    """Without the port where it is the usual one, with brackets around IPv6."""
    assert Binding().origin == "http://127.0.0.1:8765"
    assert Binding(port=80).origin == "http://127.0.0.1"
    assert Binding(host="::1").origin == "http://[::1]:8765"
    assert Binding(host="room", port=443, **TLS).origin == "https://room"
    assert Binding(**PROXY).origin == "https://room.example.org"
