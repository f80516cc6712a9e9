"""SVG as escaped markup: the only place where a tag is put together from values.

A picture has no viewBox: x runs in percent of the width it is given, y in pixels. So it fills a phone and a
desktop alike, and its text keeps its size on both.
"""

from __future__ import annotations

from markupsafe import Markup, escape


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Write one element; children that are not markup and all attribute values are escaped, None is left out."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is not None:
            text = number(value) if isinstance(value, int | float) else escape(value)
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{text}"')
    inside = Markup("").join(children)
    parts.append(f">{inside}</{name}>" if inside else "/>")
    # Every piece was escaped above; the tag and attribute names are ours.
    return Markup("".join(parts))  # noqa: S704


def number(value: float) -> str:
    """Write a number in as few characters as a picture needs."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """Place a share of the width."""
    return number(100 * share) + "%"


def picture(*children: str, title: str, desc: str = "", height: float, kind: str) -> Markup:
    """Frame a drawing that names and describes itself to those who cannot see it."""
    return element(
        "svg",
        element("title", title),
        element("desc", desc) if desc else Markup(""),
        *children,
        role="img",
        class_=f"chart {kind}",
        width="100%",
        height=height,
    )


def box(x: float, y: float, width: float, height: float, tone: str) -> Markup:
    """Draw a bar: x and width as shares, y and height in pixels."""
    return element("rect", x=percent(x), y=y, width=percent(width), height=height, class_=tone)


def line(x1: float, y1: float, x2: float, y2: float, tone: str) -> Markup:
    """Draw a line: x as shares, y in pixels."""
    return element("line", x1=percent(x1), y1=y1, x2=percent(x2), y2=y2, class_=tone)


def dot(x: float, y: float, radius: float, tone: str) -> Markup:
    """Draw a dot: x as a share, y and radius in pixels."""
    return element("circle", cx=percent(x), cy=y, r=radius, class_=tone)


def words(text: str, x: float, y: float, *, anchor: str = "middle", tone: str = "tick") -> Markup:
    """Set a short text: x as a share, y in pixels."""
    return element("text", text, x=percent(x), y=y, text_anchor=anchor, class_=tone)
