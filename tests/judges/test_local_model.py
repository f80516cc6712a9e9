"""A torchvision that does not fit its torch is imported all the same; one that works is left alone."""

import os
import subprocess
import sys

import shape
from bpals.judges.local_model import import_torchvision


def in_another_process(code):
    """Run a few lines with our package."""
    surroundings = os.environ | {"PYTHONPATH": str(shape.SRC)}
    done = subprocess.run([sys.executable, "-c", code], env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_torchvision_gives_models_and_transforms():
    """Whichever build it is; a second call gives the same, and nothing is declared twice."""
    torchvision = import_torchvision()
    assert import_torchvision() is torchvision
    assert torchvision.models.densenet121
    assert str(torchvision.transforms.CenterCrop(3)) == "CenterCrop(size=(3, 3))"


BUILDS = {
    "fitting": "",
    "broken": "raise RuntimeError('no disk')",
    "wanting": """
import torch
if not hasattr(torch.ops.torchvision, "qnms"):
    raise RuntimeError("operator torchvision::nms does not exist")
""",
    "hopeless": "raise RuntimeError('operator torchvision::nms does not exist')",
}


def test_operators_are_declared_only_where_the_import_would_fail_without(tmp_path):
    """A fitting build is left alone; another fault is raised at once; what does not help is raised, too."""
    for name, text in BUILDS.items():
        (tmp_path / name / "torchvision").mkdir(parents=True)
        (tmp_path / name / "torchvision" / "__init__.py").write_text(text)
    code = f"""
import sys
import torch
from bpals.judges.local_model import import_torchvision
for name in {list(BUILDS)}:
    sys.modules.pop("torchvision", None)
    sys.path.insert(0, {str(tmp_path)!r} + "/" + name)
    try:
        print(name, import_torchvision().__name__, hasattr(torch.ops.torchvision, "nms"))
    except RuntimeError as error:
        print(name, error, hasattr(torch.ops.torchvision, "nms"))
"""
    assert in_another_process(code).splitlines() == [
        "fitting torchvision False",
        "broken no disk False",
        "wanting torchvision True",
        "hopeless operator torchvision::nms does not exist True",
    ]
