"""The log: structured, and with nothing in it that names a patient."""

import io
import json
import logging
import logging.config

import numpy as np
import pydicom
import pytest
from pydicom.uid import ExplicitVRLittleEndian, generate_uid
from sqlalchemy import select

from bpals.room.web.server import LOGGER, RoomFormatter, log_settings
from bpals.store.ledger.schema import ACCOUNT
from world import rooms

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
    assert line["where"][-1].startswith("test_roomlog.py:")
    assert CANARY not in ours.getvalue()


def test_the_settings_are_settings():
    """`logging` takes them, and other packages write no details whatever the level is."""
    settings = log_settings("DEBUG")
    assert settings["loggers"][LOGGER]["level"] == "DEBUG"
    assert settings["loggers"]["sqlalchemy"]["level"] == "WARNING"
    assert settings["root"]["level"] == "WARNING"
    logging.config.DictConfigurator(settings)
