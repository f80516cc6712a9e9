"""A DICOM film looks as on a display, and a file that lies about its size is refused before anything is allocated."""

import io
import struct
import zlib

import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    RLELossless,
)

from bpals.images.dicom import TAGS
from bpals.images.prepare import Preparation, prepare
from bpals.types import Refusal
from world.dicoms import record_of


def written(record, syntax=ExplicitVRLittleEndian):
    """The bytes of its file."""
    record.file_meta.TransferSyntaxUID = syntax
    file = io.BytesIO()
    pydicom.dcmwrite(file, record, implicit_vr=syntax == ImplicitVRLittleEndian, little_endian=True,
                     enforce_file_format=True)  # fmt: skip
    return file.getvalue()


def notes_of(content):
    """What was noted about a film."""
    return prepare(content, Preparation()).notes


@pytest.mark.parametrize(
    "syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian, DeflatedExplicitVRLittleEndian], ids=lambda uid: uid.name
)
def test_eight_bits_are_shown_as_they_are(draw, seen, syntax):
    """F14: a full-range window, however the file is written."""
    grey = draw()
    content = written(record_of(grey, WindowCenter=128, WindowWidth=256), syntax)
    assert np.array_equal(seen(content), grey)
    assert notes_of(content) == ()


def test_monochrome1_is_turned_back(draw, seen):
    """F14: it is stored white on black, and pydicom leaves it so."""
    grey = draw()
    tags = {"PhotometricInterpretation": "MONOCHROME1", "WindowCenter": 128, "WindowWidth": 256}
    content = written(record_of(255 - grey, **tags))
    assert np.array_equal(seen(content), grey)
    assert notes_of(content) == ("inverted",)


def test_without_a_window_the_whole_range_is_shown(draw, seen):
    """F14: from the darkest to the brightest value, padding left out, in both polarities."""
    grey = draw()
    deep = grey.astype(np.uint16) * 13 + 100
    assert np.array_equal(seen(written(record_of(deep, BitsStored=12, HighBit=11))), grey)
    padded = deep.copy()
    padded[:, :2] = 4095
    shown = seen(written(record_of(padded, BitsStored=12, HighBit=11, PixelPaddingValue=4095)))
    assert np.array_equal(shown[:, 2:], seen(written(record_of(deep[:, 2:].copy(), BitsStored=12, HighBit=11))))
    negative = seen(written(record_of(deep, BitsStored=12, HighBit=11, RescaleSlope=-1, RescaleIntercept=4095)))
    assert np.array_equal(negative, 255 - grey)


def test_signed_values_slope_and_window_give_the_reference(draw, seen):
    """F14: 12 signed bits, rescaled, under a window: the film comes back to the grey level."""
    grey = draw()
    stored = (grey.astype(np.int16) * 8 - 1000).astype(np.int16)
    tags = {"BitsStored": 12, "HighBit": 11, "RescaleSlope": "0.5", "RescaleIntercept": "500"}
    window = {"WindowCenter": ["510.5", "99"], "WindowWidth": ["1021", "5"]}
    content = written(record_of(stored, **tags, **window))
    assert np.array_equal(seen(content), grey)
    assert notes_of(content) == ("deep",)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("LINEAR", [0, 0, 127.5, 255, 255]),
        ("LINEAR_EXACT", [0, 0, 127.5, 255, 255]),
        ("SIGMOID", [10, 30, 127.5, 225, 245]),
    ],
)
def test_each_window_function_follows_the_standard(seen, function, expected):
    """F14: PS3.3 C.11.2.1.2, at the centre, at the edges and beyond."""
    values = np.array([600, 750, 1000, 1250, 1400], np.uint16)
    stored = np.repeat(np.repeat(values[None, :], 64, 0), 20, 1)
    tags = {"BitsStored": 12, "HighBit": 11, "WindowCenter": 1000, "WindowWidth": 500, "VOILUTFunction": function}
    shown = seen(written(record_of(stored, **tags)))[0, ::20].astype(float)
    assert np.abs(shown - expected).max() <= 1


def test_a_table_of_the_film_stands_over_its_window(draw, seen):
    """F14: a VOI LUT, here one that inverts, and a modality LUT before it."""
    grey = draw()
    table = Dataset()
    table.LUTDescriptor = [256, 0, 16]
    table.add_new("LUTData", "OW", (np.arange(255, -1, -1, dtype=np.uint16) * 257).tobytes())
    tags = {"WindowCenter": 10, "WindowWidth": 3, "VOILUTSequence": [table]}
    assert np.array_equal(seen(written(record_of(grey, **tags))), 255 - grey)
    doubled = Dataset()
    doubled.LUTDescriptor = [256, 0, 16]
    doubled.ModalityLUTType = "US"
    doubled.add_new("LUTData", "OW", (np.arange(256, dtype=np.uint16) * 2).tobytes())
    tags = {"ModalityLUTSequence": [doubled], "WindowCenter": "255.5", "WindowWidth": 511}
    assert np.abs(seen(written(record_of(grey, **tags))).astype(int) - grey).max() <= 1


@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless], ids=lambda uid: uid.name)
def test_packed_pixels_are_unpacked(draw, seen, syntax):
    """F14: in 16 bits, without loss."""
    grey = draw()
    record = record_of(grey.astype(np.uint16) * 13, BitsStored=12, HighBit=11)
    record.compress(syntax, generate_instance_uid=False)
    assert np.array_equal(seen(written(record, syntax)), grey)


def test_a_jpeg_inside_a_dicom_is_read(draw, save, seen):
    """F14: baseline JPEG, as secondary captures have it."""
    grey = draw()
    record = record_of(
        grey, WindowCenter=128, WindowWidth=256, PixelData=encapsulate([save(grey, "JPEG", quality=100)])
    )
    record["PixelData"].is_undefined_length = True
    assert np.abs(seen(written(record, JPEGBaseline8Bit)).astype(int) - grey).max() < 8


def test_colour_becomes_grey(draw, seen):
    """F09: a secondary capture in RGB."""
    grey = draw()
    record = record_of(grey, SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0)
    record.PixelData = np.repeat(grey[:, :, None], 3, 2).tobytes()
    assert np.array_equal(seen(written(record)), grey)


def test_what_the_tags_say_of_the_film_is_noted(draw):
    """A lateral view, and text burnt into the pixels (M06)."""
    assert notes_of(written(record_of(draw(), ViewPosition="LL", BurnedInAnnotation="YES"))) == ("lateral", "burned_in")
    assert notes_of(written(record_of(draw(), ViewPosition="PA", BurnedInAnnotation="NO"))) == ()


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, DeflatedExplicitVRLittleEndian], ids=lambda uid: uid.name)
def test_a_cut_dicom_is_truncated(draw, refusal, share, syntax):
    """F11: in its header or its pixels; pydicom alone reads such a file without a word."""
    content = written(record_of(draw()), syntax)
    assert refusal(content[: int(len(content) * share)]) == "truncated"


def test_no_cut_of_a_dicom_passes(draw, refusal):
    """F11: at any length, also where the pixels are packed."""
    packed = record_of(draw().astype(np.uint16))
    packed.compress(RLELossless, generate_instance_uid=False)
    for content in (written(record_of(draw())), written(packed, RLELossless)):
        lengths = [*range(1, 700, 23), *range(700, len(content) - 16, 991)]
        assert {refusal(content[:length]) for length in lengths} <= {"truncated", "corrupt", "not_an_image"}


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ({"Rows": 300}, "truncated"),
        ({"Rows": 40}, "unexpected_size"),
        ({"Rows": 65_535, "Columns": 65_535}, "giant"),
        ({"NumberOfFrames": 999_999}, "frames"),
        ({"Rows": 1, "Columns": 1}, "tiny"),
        ({"Rows": 0}, "truncated"),
        ({"PixelData": None}, "truncated"),
        ({"BitsAllocated": 32, "BitsStored": 32, "HighBit": 31}, "codec"),
        ({"BitsStored": 12}, "corrupt"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "codec"),
        ({"PhotometricInterpretation": None}, "corrupt"),
        ({"RescaleSlope": "1e400"}, "corrupt"),
        ({"WindowCenter": 5, "WindowWidth": 0}, "corrupt"),
        ({"WindowCenter": 5, "WindowWidth": -4}, "corrupt"),
    ],
    ids=str,
)
def test_a_header_that_lies_is_refused(draw, refusal, tags, code):
    """F12: before anything is allocated, each with its own reason."""
    assert refusal(written(record_of(draw(), **tags))) == code


def test_a_picture_inside_that_is_larger_than_the_dicom_says_is_refused(draw, film, memory_of, tmp_path):
    """F12: a JPEG 2000 decoder believes its own header, here 60,000 x 60,000."""
    record = record_of(draw().astype(np.uint16))
    record.compress(JPEG2000Lossless, generate_instance_uid=False)
    content = bytearray(written(record, JPEG2000Lossless))
    at = content.index(b"\xff\x4f\xff\x51")
    struct.pack_into(">II", content, at + 8, 60_000, 60_000)
    codes, grown_mb = memory_of(tmp_path, film(), bytes(content))
    assert codes == ["unexpected_size"]
    assert grown_mb < 50


def test_pixels_packed_in_a_way_that_nobody_here_reads_have_their_own_reason(draw, save, refusal):
    """F12: JPEG lossless needs a decoder under another licence."""
    jpeg = save(draw(), "JPEG").replace(b"\xff\xc0", b"\xff\xc3", 1)
    record = record_of(draw(), PixelData=encapsulate([jpeg]))
    record["PixelData"].is_undefined_length = True
    assert refusal(written(record, JPEGLosslessSV1)) == "codec"
    record.PixelData = encapsulate([b"neither of them"])
    assert refusal(written(record, JPEG2000Lossless)) == "codec"


def test_a_deflated_bomb_is_refused_at_the_limit(draw, memory_of, tmp_path):
    """F13: 300 MB in 1.3 MB; it is counted and never kept."""
    whole = written(record_of(draw()), DeflatedExplicitVRLittleEndian)
    length = struct.unpack_from("<I", whole, 140)[0]
    assert b"1.2.840.10008.1.2.1.99" in whole[: 144 + length]
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(300)) + packer.flush()
    codes, grown_mb = memory_of(tmp_path, whole, whole[: 144 + length] + bomb)
    assert codes == ["bomb"]
    assert grown_mb < 50


def test_a_uid_that_is_a_path_writes_nothing(draw, tmp_path, monkeypatch, caplog):
    """F15: no tag is ever used as the name of a file."""
    monkeypatch.chdir(tmp_path)
    content = written(record_of(draw()))
    named = content.replace(b"1.2.826.0.1.3680043.8.498.1", b"../../../../../../../tmp/x1")
    assert named.count(b"/tmp/x1") >= 2
    assert hasattr(prepare(named, Preparation()), "film")
    assert not caplog.records, "what a tag says is not for the log"
    assert not list(tmp_path.iterdir())


def test_nothing_but_pixels_leaves_a_dicom(draw, seen):
    """M06: names in public, private and sequence tags and in overlays, also in the unused bits of each pixel."""
    grey = draw()
    deep = grey.astype(np.uint16) * 13
    clean = record_of(deep, BitsStored=12, HighBit=11)
    marked = record_of(
        deep | (np.arange(deep.size, dtype=np.uint16).reshape(deep.shape) % 2 << 15), BitsStored=12, HighBit=11
    )
    marked.PatientName, marked.PatientID, marked.InstitutionName = "CANARY^ONE", "CANARY2", "CANARY3"
    item = Dataset()
    item.PatientName = "CANARY^FOUR"
    marked.OtherPatientIDsSequence = [item]
    marked.private_block(0x0011, "CANARY MAKER", create=True).add_new(1, "LO", "CANARY5")
    marked.add_new(0x60000010, "US", 80)
    marked.add_new(0x60000011, "US", 96)
    marked.add_new(0x60000022, "LO", "CANARY6")
    marked.add_new(0x60003000, "OW", b"CANARY7!" * 120)
    content = written(marked)
    assert content.count(b"CANARY") == 7 + 119 + 1
    done = prepare(content, Preparation())
    assert b"CANARY" not in done.film.png
    assert b"CANARY" not in repr(done).encode()
    assert done.film.png == prepare(written(clean), Preparation()).film.png
    assert np.array_equal(seen(content), grey)


def test_no_tag_that_names_a_person_is_read():
    """M06: the list of what is read has no name, date or number of a patient."""
    assert not [tag for tag in TAGS if tag.startswith(("Patient", "Study", "Series", "Institution", "Referring"))]


def test_ten_thousand_sequences_in_one_another_are_refused(draw, refusal):
    """F24: a file that is only nesting."""
    whole = written(record_of(draw()))
    length = struct.unpack_from("<I", whole, 140)[0]
    nested = struct.pack("<HH2sHI", 0x0008, 0x1140, b"SQ", 0, 0xFFFFFFFF) + struct.pack(
        "<HHI", 0xFFFE, 0xE000, 0xFFFFFFFF
    )
    assert refusal(whole[: 144 + length] + nested * 10_000) in {"corrupt", "truncated"}


def check_damage(data, syntax, draw):
    """Damage one file somewhere, and prepare it."""
    record = record_of(draw(width=40, height=40).astype(np.uint16))
    if syntax in {RLELossless, JPEG2000Lossless}:
        record.compress(syntax, generate_instance_uid=False)
    content = written(record, syntax)
    at = data.draw(st.integers(128, min(len(content) - 1, 900)))
    put = data.draw(st.binary(max_size=6))
    gone = data.draw(st.integers(0, 8))
    done = prepare(content[:at] + put + content[at + gone :], Preparation())
    assert isinstance(done, Refusal) or done.film.png


@settings(max_examples=150, derandomize=True, deadline=5000)
@given(
    data=st.data(),
    syntax=st.sampled_from([ExplicitVRLittleEndian, ImplicitVRLittleEndian, RLELossless, JPEG2000Lossless]),
)
def test_no_damage_to_a_dicom_raises_anything(data, syntax, draw):
    """F24: any bytes of its header changed, cut or doubled."""
    check_damage(data, syntax, draw)


@pytest.mark.sweep
@settings(max_examples=5000, deadline=5000)
@given(
    data=st.data(),
    syntax=st.sampled_from([ExplicitVRLittleEndian, ImplicitVRLittleEndian, RLELossless, JPEG2000Lossless]),
)
def test_no_damage_to_a_dicom_ever_raises_anything(data, syntax, draw):
    """F24: five thousand other damages."""
    check_damage(data, syntax, draw)
