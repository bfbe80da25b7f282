"""README's first screen shows what the demo shows today."""

import zlib

import pytest

from distprof.demo import FOLDER
from distprof.version import __version__
from docs import demo

RENEW = "python -m docs.demo --write takes the picture again (needs Chromium)"
EMPTY = b"\x89PNG\r\n\x1a\n" + b"".join(
    size.to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
    for size, content in ((13, b"IHDR" + bytes(13)), (0, b"IEND"))
)
README = "# It\n\n```\n$ distprof demo\nold\n```\n\ntext\n\n```\nother\n```\n"


def test_the_picture_is_of_todays_page_and_small():
    picture = demo.PICTURE.read_bytes()
    assert demo.recorded(picture) == demo.fingerprint(demo.demo_page()), RENEW
    assert len(picture) <= demo.MAX_BYTES


def test_the_page_is_the_same_in_every_checkout():
    assert str(FOLDER.parent) not in demo.demo_page()


def test_a_fingerprint_is_of_the_first_screen_and_of_no_version():
    page = f"<head>{__version__}</head><header>first</header>rest"
    assert demo.fingerprint(page) == demo.fingerprint(page.replace("rest", "other"))
    assert demo.fingerprint(page) == demo.fingerprint(page.replace(__version__, ""))
    assert demo.fingerprint(page) != demo.fingerprint(page.replace("first", "changed"))


def test_a_picture_keeps_its_fingerprint():
    marked = demo.with_fingerprint(EMPTY, "abc")
    assert demo.recorded(marked) == "abc"
    assert demo.recorded(EMPTY) == ""
    kinds = [kind for kind, _ in demo._chunks(marked)]
    assert kinds == [b"IHDR", b"tEXt", b"IEND"]
    content = marked[EMPTY.index(b"IEND") :][: len(b"tEXtfingerprint\0abc")]
    assert zlib.crc32(content) == int.from_bytes(marked[-16:-12], "big")


def test_the_first_ten_lines_of_the_demo_replace_those_of_the_block():
    before, shown, after = demo.with_demo(README).split("```", 2)
    first, *lines, last = shown.strip("\n").split("\n")
    assert (before, first, last) == ("# It\n\n", "$ distprof demo", "…")
    assert len(lines) == 10
    assert after == "\n\ntext\n\n```\nother\n```\n"
    assert demo.with_demo(demo.with_demo(README)) == demo.with_demo(README)


@pytest.mark.parametrize("readme", ["# It\n", README + README])
def test_a_readme_without_the_block_or_with_two_is_refused(readme):
    with pytest.raises(ValueError, match="one block"):
        demo.with_demo(readme)


@pytest.mark.slow
@pytest.mark.skipif(not demo.browser(), reason="no Chromium: apt-get install chromium")
def test_a_picture_is_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "PICTURE", tmp_path / "report.png")
    assert demo.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert demo.main(["--write"]) == 0
    assert demo.main(["--check"]) == 0
    assert 50_000 < (tmp_path / "report.png").stat().st_size <= demo.MAX_BYTES
    kinds = dict(demo._chunks((tmp_path / "report.png").read_bytes()))
    width, height = (int.from_bytes(kinds[b"IHDR"][i : i + 4], "big") for i in (0, 4))
    assert (width, height) == demo._SIZE


def test_without_a_browser_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(demo, "browser", lambda: "")
    assert demo.main(["--write"]) == 1
    assert "chromium" in capsys.readouterr().err
    assert demo.main([]) == 2
