"""Findings link to their rules' pages where a documentation site is known, and only there."""

import json
from pathlib import Path

import pytest

import distprof
from distprof import installed
from distprof.config import parse_config
from distprof.errors import UsageError
from distprof.formats import RenderOptions, find_reporter
from distprof.installed import is_web_address, published_site
from distprof.rules import all_rules
from distprof.version import __version__
from tests.documents.html_pages import Seen

SAMPLE = Path(__file__).parent / "golden" / "kineto" / "mi250-1gpu"
SITE = "https://docs.example.org/distprof"


def analysed(**values):
    return distprof.analyze(SAMPLE, config=parse_config(values, "distprof.toml"))


@pytest.fixture(scope="module")
def linked():
    return analysed(documentation=SITE)


def addresses(report):
    pages = {rule.code: rule.docs.removesuffix(".md") for rule in all_rules()}
    return {f"{SITE}/{__version__}/{pages[finding.code]}.html" for finding in report.findings}


def shown(report, form):
    return find_reporter(form)(report, RenderOptions(show_all=True))


def test_every_document_links_to_the_page_of_this_version(linked):
    wanted = addresses(linked)
    assert wanted
    assert {one["docs_url"] for one in json.loads(shown(linked, "json"))["findings"]} == wanted
    assert wanted <= set(Seen(shown(linked, "html")).links)
    assert all(f"]({address})" in shown(linked, "md") for address in wanted)


def test_without_a_site_there_is_no_link(monkeypatch):
    monkeypatch.setattr(installed, "_installed", dict)  # run from a source tree
    assert published_site() == ""
    report = analysed()
    assert {finding.docs_url for finding in report.findings} == {""}
    assert "The rule in the documentation" not in shown(report, "html")
    assert "](http" not in shown(report, "md")


def test_the_package_names_the_site(monkeypatch, tmp_path):
    folder = tmp_path / "distprof-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: distprof\nProject-URL: Changelog, https://example.org/changes\n"
        f"Project-URL: Documentation, {SITE}\n\nProject-URL: Documentation, https://example.org/text\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert published_site() == SITE
    assert parse_config({}, "distprof.toml").site == SITE
    elsewhere = {"documentation": "http://localhost:8000"}
    assert parse_config(elsewhere, "distprof.toml").site == "http://localhost:8000"


@pytest.mark.parametrize(
    "text",
    ["javascript:alert(1)", "https://", "https://a b", "https://a/)", 'https://a/"x', "//a", "a"],
)
def test_what_is_no_web_address_is_refused(text):
    assert not is_web_address(text)
    with pytest.raises(UsageError, match="not a web address"):
        parse_config({"documentation": text}, "distprof.toml")
