"""No control character or markup from a trace gets out raw."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distprof.escape import (
    html_text,
    markdown_text,
    plain,
    plain_lines,
    short_ranks,
    shorten,
    wrapped,
)


def test_control_characters_are_spelled_out() -> None:
    assert plain("a\x1b[31mb\x07\r\n\tc") == r"a\x1b[31mb\x07\r\n\tc"


def test_invisible_and_reordering_characters_are_spelled_out() -> None:
    assert plain("\u202egnp.exe\u200b") == r"\u202egnp.exe\u200b"


def test_lone_surrogates_are_spelled_out() -> None:
    assert plain("\udc80") == r"\udc80"


def test_ordinary_text_is_left_alone() -> None:
    assert plain("ncclDevKernel_AllReduce µs – ×") == "ncclDevKernel_AllReduce µs – ×"


def test_line_breaks_of_messages_are_kept() -> None:
    assert plain_lines("a\x1b\nb") == "a\\x1b\nb"


def test_markdown_cannot_be_broken_out_of() -> None:
    text = markdown_text("<b>|x|</b> `y` [l](http://h) @all\n# t")
    assert "<" not in text
    assert text == (
        "&lt;b&gt;\\|x\\|&lt;/b&gt; \\`y\\` \\[l\\](http:\u200b//h) @\u200ball\\\\n\\# t"
    )


def test_html_is_escaped_in_attributes_too() -> None:
    assert html_text("\"<'&") == "&quot;&lt;&#x27;&amp;"


def test_a_cut_is_marked() -> None:
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("abcd", 4) == "abcd"


def test_a_number_is_not_parted_from_its_unit() -> None:
    assert wrapped("takes about 12.3 ms each", 16) == "takes about\n12.3 ms each"


def test_a_path_is_not_broken_at_its_hyphens() -> None:
    assert (
        wrapped("left out /traces/rank-0/pt-trace.json", 30)
        == "left out\n/traces/rank-0/pt-trace.json"
    )


def test_long_lists_of_ranks_are_cut_at_a_comma_and_counted() -> None:
    assert short_ranks(range(1_000)) == "0-999"
    assert short_ranks(range(0, 1_000, 2), 12) == "0,2,4,6,8,… (500 ranks)"


@given(st.text())
def test_whatever_comes_in_only_printable_characters_come_out(text: str) -> None:
    assert plain(text).isprintable()


@given(st.text())
def test_markdown_has_no_bare_bracket_bar_or_tick(text: str) -> None:
    escaped = markdown_text(text).replace("\\\\", "")
    for character in "|`[]<":
        assert escaped.count(character) == escaped.count(f"\\{character}")


@given(st.text(st.characters(categories=("L", "N", "Zs"))), st.integers(10, 80))
def test_wrapping_loses_no_word(text: str, width: int) -> None:
    assert "".join(wrapped(text, width).split()) == "".join(text.split())
