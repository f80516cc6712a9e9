"""SVG elements."""

from markupsafe import Markup

from bpals.report.charts import box, element, number, percent, picture, words

ATTACK = '"><script>alert(1)</script>'


def test_text_and_attributes_are_escaped():
    """A label cannot break out of an element or of an attribute."""
    made = element("text", ATTACK, class_=ATTACK)
    assert "<script>" not in made
    assert made.count('"') == 2


def test_markup_is_not_escaped_twice():
    """An element inside an element stays an element."""
    assert element("g", element("rect", x=1)) == Markup('<g><rect x="1"/></g>')


def test_an_attribute_that_is_none_is_left_out():
    """None means that there is no such attribute."""
    assert element("rect", x=None, y=2) == Markup('<rect y="2"/>')


def test_numbers_are_short():
    """A thousand rectangles are a matter of bytes."""
    assert [number(v) for v in (1.0, 0.5, 1 / 3, 100)] == ["1", "0.5", "0.33", "100"]
    assert percent(1 / 3) == "33.33%"


def test_a_picture_names_and_describes_itself():
    """A screen reader hears a title and a description, in that order, of something that is an image."""
    made = picture(box(0, 0, 1, 1, "t"), title="A title", desc="What it shows", height=9, kind="bar")
    assert 'role="img"' in made
    assert made.index("<title>A title</title>") < made.index("<desc>What it shows</desc>") < made.index("<rect")


def test_words_are_placed_by_share_of_the_width():
    """Text keeps its size because only its place scales."""
    assert 'x="50%"' in words("5", 0.5, 10)
