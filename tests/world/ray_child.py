"""A run on a Ray that is there already, in a process of its own, to be killed."""

from __future__ import annotations

import sys

from bpals.judges.runner.ray_executor import RayExecutor
from bpals.tasks.judge import Order, run_judge
from world import datasets


def main(spec, source, mapping, images, home, address):
    """Ask a judge through the workers of a running Ray."""
    order = Order(source=source, mapping=mapping, pace=datasets.QUICK, engine=RayExecutor(workers=2, address=address))
    run_judge(spec, images=images, workspace=home, order=order)


if __name__ == "__main__":
    main(*sys.argv[1:])
