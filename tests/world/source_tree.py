"""The code of the package, parsed once for all the tests that read it."""

import shape

TREE = shape.modules()
GRAPH = shape.import_graph(TREE)
