"""DICOM SR: one measurement report (TID 1500) per reading, only for films that are DICOM themselves.

A report belongs to the study of its film and carries that patient's name, as the film does: protect both alike. A PNG
has no study, series or instance; none is invented for it. What the readers came to together is a report of its own, by
its adjudicator, or by the device `bpals` where the reads themselves settled it.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import polars as pl

from bpals.errors import MissingExtra, TruthError, UsageError
from bpals.registry import ExportKind
from bpals.reviews.exchange import TRUTH, Films, Found, Written, as_boxes, boxes_of, no_reads, table_of, truths_of
from bpals.reviews.labelstudio import READING
from bpals.reviews.verdicts import counted
from bpals.text import several
from bpals.version import VERSION

GIVEN_BACK = (
    "image_id", "finding", "reader", "phase", "round", "repeat", "verdict", "confidence", "at", "external_id",
)  # fmt: skip
"""The columns that this format gives back as they were; boxes come back to a hundredth of a pixel."""
NUMBERS = ("round", "repeat", "confidence")
SCHEME = "99BPALS"
SETTLED = "consensus"  # the session of a group that says what readers came to together
MOST_MEANING = 64  # characters that DICOM allows for the meaning of a code
EMPTY = (
    "PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID",
    "AccessionNumber", "ReferringPhysicianName",
)  # fmt: skip
"""What a report must have and may leave empty, where its film has none of it."""

Row = dict[str, Any]


def write(reviews: pl.DataFrame, films: Films) -> Written:
    """Write one report per reading; films that are no DICOM are counted, and none at all is refused."""
    _highdicom()
    files: dict[str, bytes] = {}
    others: list[str] = []
    left_out = 0
    truths = truths_of(reviews, "truth_by")
    for (film,), part in reviews.group_by("image_id", maintain_order=True):
        content = films.dicom(str(film))
        if content is None:
            others.append(str(film))
            left_out += part.height
            continue
        for _, rows in part.group_by(READING, maintain_order=True):
            name, report = _report(rows.rows(named=True), content)
            files[name] = report
        files |= dict(_truth(rows, content) for rows in truths.get(str(film), []))
    if not files:
        films_read = several(len(others), "film that was", "films that were")
        raise UsageError(
            f"of {films_read} read none is DICOM (first: {others[0]}), and a DICOM SR needs the "
            "study of its film. Type: --format csv, or name the DICOM films with --images PATH"
        )
    no_dicom = several(len(others), "film that is", "films that are")
    message = f"not in it: {several(left_out, 'read')} of {no_dicom} no DICOM (first: {(others or ['-'])[0]})"
    return Written(files=files, notices=tuple(counted("no_dicom", left_out, message)))


def _highdicom() -> tuple[Any, Any]:
    """Import what writes reports when it is first needed: it is an extra, and takes a second to load."""
    try:
        from highdicom import sr
        from pydicom.sr.codedict import codes
    except ImportError:
        raise MissingExtra.of("DICOM SR", "sr") from None
    return sr, codes


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep pydicom from warning of tags that name patients."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _report(rows: list[Row], content: bytes) -> tuple[str, bytes]:
    film = _film(content)
    groups = [group for row in rows for group in _groups(row, film)]
    return _document(film, groups, rows[0]["reader"], [str(row["external_id"]) for row in rows])


def _truth(rows: list[Row], content: bytes) -> tuple[str, bytes]:
    """Write the report of what the readers of a film came to."""
    film = _film(content)
    known = [f"{SETTLED} {row['study']} {row['image_id']} {row['finding']} {row['truth_at']}" for row in rows]
    groups = []
    for row, identifier in zip(rows, known, strict=True):
        group = _verdict_group(row["finding"], row["truth"], SETTLED, identifier, film)
        _add_texts(group, row, ("study", *TRUTH.names()))
        groups.append(group)
    return _document(film, groups, rows[0]["truth_by"], known)


def _film(content: bytes) -> Any:
    import pydicom

    with _quiet():
        film = pydicom.dcmread(io.BytesIO(content), stop_before_pixels=True)
        for name in EMPTY:
            if name not in film:
                setattr(film, name, "")
    return film


def _observer(name: str | None) -> Any:
    """Give who reports: a person, or the device bpals where there is none."""
    sr, codes = _highdicom()
    if name is None:
        device = sr.DeviceObserverIdentifyingAttributes(uid=_uid("device"), name="bpals")
        context = sr.ObserverContext(sr.CodedConcept.from_code(codes.DCM.Device), device)
        return sr.ObservationContext(observer_device_context=context)
    # DICOM writes a person with these characters as marks: they would part the name.
    plain = "".join(" " if letter in "^=\\" else letter for letter in name)[:MOST_MEANING]
    person = sr.PersonObserverIdentifyingAttributes(name=plain, login_name=name)
    context = sr.ObserverContext(sr.CodedConcept.from_code(codes.DCM.Person), person)
    return sr.ObservationContext(observer_person_context=context)


def _document(film: Any, groups: list[Any], by: str | None, known: list[str]) -> tuple[str, bytes]:
    """Write one report, and name its file after what it says, never after the patient."""
    sr, codes = _highdicom()
    with _quiet():
        report = sr.MeasurementReport(
            observation_context=_observer(by),
            procedure_reported=codes.SCT.ImagingProcedure,
            imaging_measurements=groups,
            title=codes.DCM.ImagingMeasurementReport,
        )
        document = sr.ComprehensiveSR(
            evidence=[film],
            content=report[0],
            series_instance_uid=_uid("series", film.StudyInstanceUID),
            series_number=1,
            sop_instance_uid=_uid("report", *known),
            instance_number=1,
            manufacturer="bpals",
            software_versions=VERSION,
            is_complete=True,
            is_verified=False,
            series_description="bpals reads",
        )
        buffer = io.BytesIO()
        document.save_as(buffer, enforce_file_format=True)
    return f"{hashlib.sha256(' '.join(known).encode()).hexdigest()[:32]}.dcm", buffer.getvalue()


def _groups(row: Row, film: Any) -> list[Any]:
    """Write the verdict as one group of evaluations, and each box as a region of its own with the same tracking id."""
    sr, _ = _highdicom()
    verdict = _verdict_group(row["finding"], row["verdict"], row["phase"], row["external_id"], film)
    _add_texts(verdict, row, (*GIVEN_BACK, "note"))
    tracking = {"uid": _uid("review", row["external_id"]), "identifier": row["external_id"]}
    regions = []
    for x, y, width, height in boxes_of(row["box"]):
        corners = [[x, y], [x + width, y], [x + width, y + height], [x, y + height], [x, y]]
        region = sr.ImageRegion("POLYLINE", np.array(corners), sr.SourceImageForRegion(**_source(film)))
        regions.append(
            sr.PlanarROIMeasurementsAndQualitativeEvaluations(
                tracking_identifier=sr.TrackingIdentifier(**tracking),
                referenced_region=region,
                finding_type=_code(row["finding"]),
            )
        )
    return [verdict, *regions]


def _verdict_group(finding: str, verdict: str, session: str, identifier: str, film: Any) -> Any:
    sr, codes = _highdicom()
    coded = {"present": codes.SCT.Present, "absent": codes.SCT.Absent, "uncertain": codes.SCT.Uncertain}
    value = coded.get(verdict) or _code(verdict)
    return sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(uid=_uid("review", identifier), identifier=identifier),
        finding_type=_code(finding),
        session=session,
        qualitative_evaluations=[sr.QualitativeEvaluation(name=_code("verdict"), value=value)],
        source_images=[sr.SourceImageForMeasurementGroup(**_source(film))],
    )


def _add_texts(group: Any, row: Row, names: Iterable[str]) -> None:
    """Add what DICOM has no code for, each under its own name."""
    sr, _ = _highdicom()
    for name in names:
        if row[name] is not None and row[name] != "":
            group[0].ContentSequence.append(
                sr.TextContentItem(name=_code(name), value=str(row[name]), relationship_type="CONTAINS")
            )


def _source(film: Any) -> dict[str, Any]:
    return {"referenced_sop_class_uid": film.SOPClassUID, "referenced_sop_instance_uid": film.SOPInstanceUID}


def _code(word: str) -> Any:
    sr, _ = _highdicom()
    return sr.CodedConcept(value=word[:MOST_MEANING], scheme_designator=SCHEME, meaning=word[:MOST_MEANING])


def _uid(*words: str) -> str:
    """Make the id of something that we write: the same reads, exported twice, are the same report."""
    from pydicom.uid import generate_uid

    return str(generate_uid(entropy_srcs=["bpals", *words]))


def read(files: Mapping[str, bytes], name: str) -> Found:
    """Read reports that were written here; others are counted."""
    _highdicom()
    rows: list[Row] = []
    strange, settled = 0, 0
    for content in files.values():
        found = list(_reads(content))
        truths = sum("truth" in row for row in found)
        strange += not found
        settled += truths
        rows += [] if truths else found
    if not rows:
        raise TruthError(
            f"{name} holds no report that bpals wrote. Export them with --format dicom-sr, or name another"
        )
    message = f"{name}: {several(strange, 'file is no report', 'files are no reports')} of bpals: left out"
    notices = (*counted("strange_files", strange, message), *no_reads(name, settled))
    return Found(table=table_of(rows, name), notices=notices)


def _reads(content: bytes) -> Iterable[Row]:
    """Give the reads of a report; of one that says what readers came to, rows with a `truth`."""
    import pydicom
    from pydicom.errors import InvalidDicomError

    rows: dict[str, Row] = {}
    boxes: dict[str, list[list[float]]] = {}
    with _quiet():
        try:
            document = pydicom.dcmread(io.BytesIO(content))
            for group in _groups_of(document):
                texts = {_word(item): item.TextValue for item in group.ContentSequence if item.ValueType == "TEXT"}
                tracked = str(texts.get("112039") or "")  # DCM: Tracking Identifier
                if "truth" in texts:
                    rows[tracked] = {"truth": texts["truth"]}
                elif "external_id" in texts:
                    rows[tracked] = {name: texts.get(name) for name in (*GIVEN_BACK, "note")}
                boxes.setdefault(tracked, []).extend(
                    _box(item) for item in group.ContentSequence if item.ValueType == "SCOORD"
                )
        except (InvalidDicomError, AttributeError, KeyError, ValueError, TypeError, EOFError, OSError):
            return []
    for tracked, row in rows.items():
        row |= {each: int(row[each]) for each in NUMBERS if row.get(each) is not None}
        row["box"] = as_boxes(boxes.get(tracked, []))
    return list(rows.values())


def _groups_of(document: Any) -> Iterator[Any]:
    """Give the measurement groups, which lie two containers deep."""
    for container in document.ContentSequence:
        if container.ValueType == "CONTAINER" and _word(container) == "126010":  # DCM: Imaging Measurements
            for group in container.ContentSequence:
                if _word(group) == "125007":  # DCM: Measurement Group
                    yield group


def _word(item: Any) -> str:
    code = item.ConceptNameCodeSequence[0]
    return str(code.get("CodeValue") or code.get("LongCodeValue") or code.CodeMeaning)


def _box(item: Any) -> list[float]:
    across, down = item.GraphicData[0::2], item.GraphicData[1::2]
    x, y = min(across), min(down)
    return [round(float(each), 2) for each in (x, y, max(across) - x, max(down) - y)]


EXPORT = ExportKind(
    name="dicom-sr",
    summary="DICOM structured reports, for images that are DICOM: a folder",
    write=write,
    read=lambda content, name: read({name: content}, name),
    read_folder=read,
    content="dicom",
    needs="files",
    extra="sr",
    packages=("highdicom",),
)
