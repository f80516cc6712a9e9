"""torchvision, imported also where its build does not fit the torch beside it.

The wheel that most people get is a build for CUDA. Beside a torch without CUDA its compiled part cannot be loaded, and
then its import fails over two operators for boxes that no classifier calls. Where that happens they are declared,
without a body, and it is imported again; an install that works is left alone.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

NAMESPACE = "torchvision"
OPERATORS = ("nms", "qnms")


def import_torchvision() -> Any:
    """Import torchvision; raises ImportError where it is not installed, RuntimeError where nothing helps."""
    try:
        return import_module(NAMESPACE)
    except RuntimeError as error:
        if not any(f"{NAMESPACE}::{name}" in str(error) for name in OPERATORS):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == NAMESPACE]:
        del sys.modules[name]
    _declare_operators()
    return import_module(NAMESPACE)


def mend_torchvision() -> None:
    """See that whoever imports torchvision later can: transformers does wherever it is installed, fitting or not."""
    if find_spec(NAMESPACE) is not None:
        import_torchvision()


@cache
def _declare_operators() -> Any:
    """Declare the operators once a process; they last as long as what is given here, which the cache keeps."""
    library = import_module("torch").library.Library(NAMESPACE, "DEF")
    for name in OPERATORS:
        library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return library
