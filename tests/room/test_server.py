"""How a room is served: its address, its limits and its log."""

import io
import json
import logging
import logging.config
import ssl
from pathlib import Path

import httpx
import numpy as np
import pydicom
import pytest
import trustme
from pydicom.uid import ExplicitVRLittleEndian, generate_uid
from sqlalchemy import select

from bpals.errors import UsageError
from bpals.room.desk.study import Account
from bpals.room.people.accounts import AccountCard
from bpals.room.web.server import LOGGER, Binding, RoomFormatter, check_binding, is_loopback, log_settings
from bpals.store.ledger.schema import ACCOUNT
from world import rooms


def test_it_speaks_tls_itself(tmp_path):
    """A reader enters over TLS; the cookie has the prefix that browsers keep to TLS, and goes back."""
    authority = trustme.CA()
    mine = authority.issue_cert("localhost")
    mine.private_key_pem.write_to_path(tmp_path / "room.key")
    mine.cert_chain_pems[0].write_to_path(tmp_path / "room.crt")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    port = rooms.free_port()
    origin = f"https://localhost:{port}"
    files = {"certificate": tmp_path / "room.crt", "key": tmp_path / "room.key"}
    with (
        rooms.open_room(rooms.address_of(tmp_path), origin=origin) as opened,
        rooms.serving(opened.app, port, **files),
        httpx.Client(base_url=origin, verify=trust, headers={"origin": origin}) as client,
    ):
        token = opened.room.accounts.make_link(opened.account("anna"), by="test")
        assert client.post("/enter", json={"token": token}).status_code == 200
        assert [cookie.name for cookie in client.cookies.jar if cookie.secure] == ["__Host-bpals"]
        assert client.post("/api/next").json()["reading"]["case_no"] == 1
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://localhost:{port}/healthz")


@pytest.mark.parametrize("trusted", [True, False])
def test_who_asks_is_what_a_trusted_proxy_says(tmp_path, trusted):
    """S08: behind a proxy each reader is limited by his own address; without one nobody chooses his address."""
    port = rooms.free_port()
    origin = f"http://127.0.0.1:{port}"
    proxy = {"behind_proxy": "127.0.0.1" if trusted else "10.9.8.7"}
    with (
        rooms.open_room(rooms.address_of(tmp_path), origin=origin) as opened,
        rooms.serving(opened.app, port, **proxy),
        httpx.Client(base_url=origin, headers={"origin": origin}) as client,
    ):
        opened.app.state.entrance.by_address._most = 3
        tried = [
            client.post("/enter", json={"token": "guess"}, headers={"x-forwarded-for": f"192.0.2.{n}"}).status_code
            for n in range(5)
        ]
    assert tried == ([401] * 5 if trusted else [401] * 3 + [429] * 2)


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


CANARY = "Kanarienvogel"
"""Stands in a file's name, in a DICOM's tags, in a note, in an account, in a password and in what fails."""


@pytest.fixture
def written():
    """What the room's log and what a careless log would hold, everything at DEBUG."""
    ours, careless = io.StringIO(), io.StringIO()
    handlers = [logging.StreamHandler(ours), logging.StreamHandler(careless)]
    handlers[0].setFormatter(RoomFormatter())
    root = logging.getLogger()
    loggers = {
        name: logging.getLogger(name) for name in ("", LOGGER, "sqlalchemy.engine", "pydicom", "PIL", "uvicorn.error")
    }
    before = {name: logger.level for name, logger in loggers.items()}
    for logger in loggers.values():
        logger.setLevel(logging.DEBUG)
    root.handlers += handlers
    yield ours, careless
    root.handlers = [handler for handler in root.handlers if handler not in handlers]
    for name, logger in loggers.items():
        logger.setLevel(before[name])


def dicom():
    """A DICOM film whose tags name somebody."""
    made = pydicom.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID = generate_uid()
    made.PatientName, made.PatientID, made.StudyDescription = f"{CANARY}^Anna", f"{CANARY}-1", f"chest of {CANARY}"
    made.Rows, made.Columns, made.SamplesPerPixel, made.BitsAllocated, made.BitsStored, made.HighBit = (
        48,
        64,
        1,
        16,
        12,
        11,
    )
    made.PixelRepresentation, made.PhotometricInterpretation = 0, "MONOCHROME2"
    made.PixelData = np.random.default_rng(1).integers(0, 4096, (48, 64), dtype=np.uint16).tobytes()
    buffer = io.BytesIO()
    made.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def test_s23_no_canary_comes_out(tmp_path, written):
    """S23: a whole reading, with what is wrong in it, everything at DEBUG: no log, page or error names the canary."""
    ours, careless = written
    told = []
    with rooms.open_room(rooms.address_of(tmp_path / CANARY)) as opened:
        pixels = dicom()
        opened.shelf.contents = dict.fromkeys(opened.shelf.contents, pixels)
        opened.account(CANARY, password=rooms.PASSWORD)
        anna = opened.visitor(raise_server_exceptions=False)
        told.append(anna.post("/login", {"name": CANARY, "password": f"wrong {CANARY}"}))
        told.append(anna.post("/login", {"name": CANARY, "password": rooms.PASSWORD}))
        assert [reply.status_code for reply in told] == [401, 200]
        anna = opened.browser("anna")
        anna.client = opened.visitor(raise_server_exceptions=False).client
        anna.client.cookies = opened.browser("anna").client.cookies
        reading = anna.next()["reading"]
        address = f"/api/readings/{reading['reading_id']}"
        told += [anna.get(f"{address}/films/{n}") for n in (0, 1, 5)]
        assert told[-2].status_code == 200
        anna.act("draft", reading, answer={"note": f"as in {CANARY}"})
        draft = anna.next()["reading"]
        told += [anna.act("draft", draft, answer={"verdicts": {CANARY: "present"}}, wrong=CANARY)]
        told += [anna.get(f"/{CANARY}"), anna.get(f"/api/readings/{CANARY}"), anna.get(f"/read?{CANARY}=1")]

        def breaks(image_id):
            raise RuntimeError(f"{CANARY} {image_id}")

        object.__setattr__(opened.room, "film", breaks)
        told += [anna.get(f"{address}/films/1")]
        assert told[-1].status_code == 500
        opened.ledger.look(lambda connection: connection.execute(select(ACCOUNT).where(ACCOUNT.c.name == CANARY)).all())
        logging.getLogger("pydicom").warning("a tag of %s is odd", CANARY)
        logging.getLogger("bpals.room.somewhere").info("put in: %s", CANARY)
    assert CANARY in careless.getvalue(), "the test could not fail"
    assert CANARY not in ours.getvalue()
    assert all(CANARY not in f"{reply.text} {reply.headers}" for reply in told)
    for image_id in opened.shelf.contents:
        assert image_id not in ours.getvalue()


def test_every_line_is_an_object_in_utc(tmp_path, written):
    """One line an event: when, how grave, which route as it is declared, which account by number."""
    ours, _ = written
    with rooms.open_room(rooms.address_of(tmp_path)) as opened:
        anna = opened.browser("anna")
        reading = anna.next()["reading"]["reading_id"]
        anna.get(f"/api/readings/{reading}")
        anna.get("/api/accounts")
    lines = [json.loads(line) for line in ours.getvalue().splitlines()]
    assert all(line["at"].endswith("+00:00") for line in lines)
    asked = [line for line in lines if line["event"] == "request" and line["route"] == "/api/readings/{reading_id}"]
    assert [(line["status"], line["method"], line["account"]) for line in asked] == [(200, "GET", 1)]
    assert reading not in ours.getvalue()
    refused = [line for line in lines if line["event"] == "refused"]
    assert [(line["why"], line["route"]) for line in refused] == [("role", "/api/accounts")]
    assert {line["event"] for line in lines if not line["logger"].startswith(LOGGER)} <= {"withheld"}


def test_a_line_cannot_be_broken(written):
    """What somebody puts into a field does not begin a line of his own."""
    ours, _ = written
    logging.getLogger(LOGGER).warning("refused", extra={"fields": {"why": 'x\n{"event": "forged"}\u2028'}})
    (line,) = ours.getvalue().splitlines()
    assert json.loads(line)["why"].startswith("x\n")


def test_an_error_keeps_its_places_and_loses_its_words(written):
    """Its type and where it happened; never what it says, nor what it came from."""
    ours, _ = written
    try:
        try:
            int(CANARY)
        except ValueError as error:
            raise KeyError(CANARY) from error
    except KeyError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application: %s", CANARY)
    line = json.loads(ours.getvalue())
    assert line["error"] == "KeyError"
    assert line["where"][-1].startswith("test_server.py:")
    assert CANARY not in ours.getvalue()


def test_the_settings_are_settings():
    """`logging` takes them, and other packages write no details whatever the level is."""
    settings = log_settings("DEBUG")
    assert settings["loggers"][LOGGER]["level"] == "DEBUG"
    assert settings["loggers"]["sqlalchemy"]["level"] == "WARNING"
    assert settings["root"]["level"] == "WARNING"
    logging.config.DictConfigurator(settings)
