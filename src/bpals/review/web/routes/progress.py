"""Progress: the numbers of the study."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from bpals.review.web.door import Me, TheRoom
from bpals.review.web.payloads import progress_payload

router = APIRouter(prefix="/api")


@router.get("/progress")
def progress(room: TheRoom, account: Me) -> dict[str, Any]:
    """Send how far the study is."""
    return progress_payload(room.progress(), account)
