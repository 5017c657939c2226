"""Untrusted text, made safe for a terminal, Markdown, HTML and pictures. `test_text_attacks.py` has
what a console prints."""

import html

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.hostile import HOSTILE, MARKDOWN, UNSAFE, kinds
from trl_ablate.run.untrusted import (
    for_html,
    for_markdown,
    for_picture,
    for_terminal,
    markdown_code,
    markdown_fence,
    on_one_line,
)

ATTACKS = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
ANYTHING = st.text(st.characters(), max_size=60) | st.text("`|\\*_#->~ \n[]()!&;x1.$", max_size=30)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\x00\x7f\x9b", r"a\x00\x7f\x9b"),
        ("\u202eab\u2066", r"\u202eab\u2066"),
        ("a\ud800", r"a\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("a\r\nb\tc\n", "a\nb\tc\n"),
        ("a\rb", r"a\x0db"),
        ("naïve 漢字 👩‍🔬 \\frac{1}{2}", "naïve 漢字 👩‍🔬 \\frac{1}{2}"),
    ],
)
def test_control_characters_become_visible_and_the_rest_stays(text, shown):
    assert for_terminal(text) == shown
    assert for_terminal(shown) == shown


def document(text: str) -> str:
    """The text in every place of a Markdown document."""
    line, code = for_markdown(text), markdown_code(text)
    return (
        f"# {line}\n\nlead {line}\n\n{line}\n\n- {line}\n- {line}\n\n"
        f"**bold: {line}** {code} end\n\n"
        f"| {line} | b |\n| --- | --- |\n| {markdown_code(text, in_table=True)} | {line} |\n\n"
        f"{markdown_fence(text)}\n\n<details><summary>{for_html(on_one_line(text))}</summary>\n\n"
        f"{markdown_fence(text, 'yaml')}\n\n</details>\n\n## end\n"
    )


def check_markdown(text: str) -> None:
    shown = on_one_line(text)
    tokens = MARKDOWN.parse(document(text))
    if shown:  # without any, there is no paragraph
        assert [token.type for token in tokens] == kinds(document("word"))
    inside = {child.type for token in tokens for child in token.children or ()}
    assert inside <= {"text", "code_inline", "strong_open", "strong_close"}, inside
    fences = [token.content for token in tokens if token.type == "fence"]
    assert fences == [for_terminal(text) + "\n"] * 2
    spans = [c.content for t in tokens for c in t.children or () if c.type == "code_inline"]
    assert [span.strip() for span in spans] == [shown] * 2
    rendered = MARKDOWN.render(f"x {for_markdown(text)} x")
    assert rendered == f"<p>x {html.escape(shown).replace('&#x27;', chr(39))} x</p>\n"


@settings(max_examples=300)
@given(ANYTHING)
def test_no_text_changes_the_structure_of_a_markdown_document(text):
    check_markdown(text)


@ATTACKS
def test_no_attack_changes_a_document_or_a_page_or_a_label(text):
    check_markdown(text)
    page, label = for_html(text), for_picture(text)
    assert not {*"<>\"'"} & {*page} and html.unescape(page) == for_terminal(text)
    assert len(label) <= 40 and "\n" not in label and not UNSAFE.search(label)


def test_a_long_label_shows_both_ends():
    assert for_picture("a" * 60 + "-seed3", 16) == "aaaaaaaaaa…seed3"
    assert for_picture("std_dev_off") == "std_dev_off"
