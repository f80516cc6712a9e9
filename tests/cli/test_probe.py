"""`bpals probe build`, typed."""

import json

from world.words import mentions


def test_the_backbone_is_built_where_it_is_looked_for(start_bpals, lite0, tmp_path):
    """The same file as any other build of these packages, told as JSON; then `probe:lite0` is found."""
    surroundings = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    lacking = start_bpals("judge", "run", "probe:lite0", "--images", tmp_path, environment=surroundings)
    assert "Type: bpals probe build" in lacking.communicate()[1]
    assert lacking.returncode == 2
    built = start_bpals("probe", "build", "--json", environment=surroundings)
    out, errors = built.communicate()
    assert built.returncode == 0, errors
    told = json.loads(out)
    assert told["width"] == 2576
    assert told["path"].startswith(str(tmp_path))
    assert (tmp_path / told["path"]).read_bytes() == lite0.read_bytes()
    found = start_bpals("judge", "run", "probe:", "--images", tmp_path / "none", environment=surroundings)
    first, *others = found.communicate()[1].splitlines()
    assert mentions(first, "note:", "probe:lite0")
    assert "is no folder" in others[-1]


def test_the_help_has_an_example(start_bpals):
    """As every command's has."""
    shown = start_bpals("probe", "build", "--help").communicate()[0]
    assert "Example: bpals probe build" in " ".join(shown.split())
