"""Packages that report to their makers, imported so that they do not.

onnxruntime writes a device id and a queue of events into the user's cache and calls home; the packages of Hugging Face
say what they load and on what. They read their surroundings once, when they are imported: so what stands in
`OFF` is set first, whatever was set before; Ray is started after `silence`.
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
"""What turns the reports of onnxruntime, huggingface_hub, transformers, timm, hf_xet and Ray off."""
REPORTING = ("onnxruntime", "rapidocr_onnxruntime", "huggingface_hub", "transformers", "timm")
"""Packages that report, or import one that does: imported through `import_silent` alone."""


def silence() -> None:
    """Turn reports off in this process and those that it starts, before any code is loaded that may import anything."""
    os.environ.update(OFF)


def import_silent(name: str) -> Any:
    """Import a package that would report to its makers; raises ImportError where it cannot be imported."""
    silence()
    module = import_module(name)
    if (runtime := sys.modules.get("onnxruntime")) is not None:
        runtime.disable_telemetry_events()  # whoever imported it before us had it on
    return module
