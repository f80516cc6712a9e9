"""A process that looks at films, four a block and a quarter of a second each, until it is killed."""

import sys
import time
from pathlib import Path

from bpals.images.prepare import Preparation
from bpals.images.stream import FeatureSpec
from bpals.judges.backbone import open_backbone
from bpals.store.features import FeatureCache
from bpals.store.workspace import Workspace
from bpals.tasks.image_access import open_images, open_manifest
from bpals.tasks.judge import Order
from bpals.tasks.probe import EXTRACTOR, ProbeRun, extract_features, probe_of


def main() -> None:
    """Look at the films that the words name."""
    named, source, mapping, images, folder = sys.argv[1:]
    home, backbone = Workspace(folder), open_backbone(named)
    films = open_manifest(home, source, mapping)
    box = open_images(home, films, images, Preparation(), require_all=False)
    cache = FeatureCache(Path(folder), backbone.name, backbone.sha256, backbone.width, block=4)
    # What watches is told after each film that takes longer than it waits between two looks; it slows the films down.
    probing = ProbeRun(
        home=home,
        manifest=films,
        cache=cache,
        judge=probe_of(backbone),
        spec=f"probe:{named}",
        watch=lambda _snapshot: time.sleep(0.25),
    )
    feature_spec = FeatureSpec(side_px=backbone.side_px, extractor=EXTRACTOR, given={"named": named})
    extract_features(probing, box, feature_spec, Order(source=source, mapping=mapping, workers=0))


if __name__ == "__main__":
    main()
