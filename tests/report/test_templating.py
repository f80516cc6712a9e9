"""The templates."""

import re
from importlib import resources

import pytest
from jinja2 import UndefinedError

from bpals.report.templating import fill

TEMPLATES = [file.name for file in resources.files("bpals.report").joinpath("templates").iterdir()]


def test_a_name_that_was_not_handed_in_is_an_error():
    """A gap in the page would be read as a fact about the data."""
    with pytest.raises(UndefinedError):
        fill("next.html")


def test_values_are_escaped():
    """The version is a text like any other."""
    assert "&lt;b&gt;" in fill("layout.html", version="<b>")


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name.endswith(".html")])
def test_no_template_switches_escaping_off(name):
    """Markup is made in svg.py and in the templates themselves, nowhere from a value."""
    source = resources.files("bpals.report").joinpath("templates", name).read_text(encoding="utf-8")
    assert not re.search(r"\|\s*safe\b", source)
    assert "autoescape" not in source
