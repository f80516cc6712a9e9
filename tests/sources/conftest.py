"""Small tables with small mappings, for the tests of this room."""

import pytest

from bpals.errors import SourceError
from bpals.sources import tabular


@pytest.fixture
def load(tmp_path):
    """Load a table from the text of a CSV and of a mapping."""

    def load(text, mapping, name="t.csv"):
        content = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(content)
        (tmp_path / "my.toml").write_text(mapping)
        return tabular.load(tmp_path / name, tmp_path / "my.toml")

    return load


@pytest.fixture
def refusal(load):
    """The one line that a table is refused with."""

    def refusal(text, mapping):
        with pytest.raises(SourceError) as caught:
            load(text, mapping)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refusal


@pytest.fixture
def said():
    """What each film says, as `+` present, `-` absent, `?` uncertain, `.` silent, in the order of the findings."""

    def said(dataset):
        letters = {"present": "+", "absent": "-", "uncertain": "?"}
        claims = {(image, finding): letters[says] for image, finding, says in dataset.claims.iter_rows()}
        return {
            image: "".join(claims.get((image, finding), ".") for finding in dataset.vocabulary.findings)
            for image in dataset.images["image_id"]
        }

    return said


@pytest.fixture
def notices():
    """Code -> count of what was odd."""
    return lambda dataset: {notice.code: notice.count for notice in dataset.notices}
