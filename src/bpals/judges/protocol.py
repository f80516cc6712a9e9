"""The names under which the judges know the protocols of `bpals.types`."""

from bpals.types import BadReply, ChatJudge, ImageJudge, R, RequestRefused
from bpals.types import Client as Line
from bpals.types import ReadReply as Read

__all__ = ["BadReply", "ChatJudge", "ImageJudge", "Line", "R", "Read", "RequestRefused"]
