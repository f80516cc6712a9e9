"""Optional packages that send telemetry, imported with telemetry off.

onnxruntime writes a device id and a queue of events into the user's cache and sends them. The packages of Hugging Face
report what they load, and on which machine. Each reads the environment once, at import: so `OFF` is set before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

OFF: Mapping[str, str] = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Turns off the telemetry of onnxruntime, huggingface_hub, transformers, timm, hf_xet and Ray."""
REPORTING = ("onnxruntime", "rapidocr_onnxruntime", "huggingface_hub", "transformers", "timm")
"""Packages that send telemetry, or import one that does: import them only through `import_silent`."""


def silence() -> None:
    """Turn telemetry off in this process and its children; call it before anything is imported or Ray starts."""
    os.environ.update(OFF)


def import_silent(name: str) -> Any:
    """Import a package that would send telemetry; raises ImportError where it cannot be imported."""
    silence()
    module = import_module(name)
    if (runtime := sys.modules.get("onnxruntime")) is not None:
        runtime.disable_telemetry_events()  # the user's code may have imported it first, with telemetry on
    return module
