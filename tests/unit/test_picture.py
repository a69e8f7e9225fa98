"""Pictures of captured screens."""

from tests.tools.picture import svg

RED = "\x1b[31mtripped\x1b[0m zone-b\n\n\n"


def test_a_picture_shows_text_and_colours_and_loads_nothing() -> None:
    picture = svg(RED, 40, "slipway top")
    assert "tripped" in picture
    assert "slipway&#160;top" in picture or "slipway top" in picture
    assert {part.split('"')[0] for part in picture.split("http")[1:]} == {"://www.w3.org/2000/svg"}


def test_empty_lines_at_the_end_are_left_out() -> None:
    assert svg(RED, 40, "x").count("clip-path") == svg(RED.rstrip(), 40, "x").count("clip-path")
