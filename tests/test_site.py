"""The documentation site holds every page, in the order of the index, as GitHub shows it."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from distprof.rules import all_rules
from distprof.version import __version__
from docs.contents import Section, contents, outside_code, place_of, rule_families
from docs.llms import first_sentence, llms_text
from tests.optional import optional

markdown = optional("markdown")
markdown_it = optional("markdown_it")
mkdocs_config = optional("mkdocs.config")
site_hooks = optional("docs.site")

ROOT = Path(__file__).parents[1]
TOP = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in TOP)])
WRITTEN = [page for page in PAGES if page.parent.name != "rules"]
ALIKE = ("h1", "h2", "h3", "h4", "li", "ol", "ul", "table", "tr", "pre", "code", "em", "strong")

INDEX = """\
# acme

It finds what [it](a.md) can. More follows.

## Start

- [One](a.md): the first
- [Two](../B.md)

## Rest

- [Three](c/d.md)
"""


def test_the_order_is_that_of_the_index():
    assert contents(INDEX) == (
        Section(title="Start", pages=("a.md", "../B.md")),
        Section(title="Rest", pages=("c/d.md",)),
    )
    assert [place_of(page) for page in ("a.md", "../B.md")] == ["a.md", "project/B.md"]


def test_every_rule_is_in_a_family_that_has_a_name():
    families = rule_families()
    assert sorted(page for pages in families.values() for page in pages) == sorted(
        rule.docs for rule in all_rules()
    )
    assert not [name for name in families if name.isupper() and name != "CPU"]


def test_llms_txt_has_each_page_with_its_first_sentence():
    pages = {
        "index.md": INDEX,
        "a.md": "# A\n\n<!-- note -->\n\n```\ncode\n\n# c\n```\n\nTake `x.y` first. Then more.\n",
        "../B.md": "# B\n\n## Part\n\n- a list\n",
        "c/d.md": "# D\n\nIt reads\ntwo kinds:\n\n- a\n",
    }
    assert llms_text(pages.__getitem__) == (
        "# acme\n\n> It finds what it can. More follows.\n"
        "\n## Start\n\n- [A](a.md): Take `x.y` first.\n- [B](project/B.md)\n"
        "\n## Rest\n\n- [D](c/d.md): It reads two kinds.\n"
    )


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_has_a_sentence_for_llms_txt(page):
    assert re.search(r"\w{3}.*[.?!]$", first_sentence(page.read_text("utf-8")))


def test_code_is_left_alone():
    upper = re.compile("[a-z]+")
    text = "one `two` three\n```\nfour ` five\n```\nsix ``sev`en`` eight\n"
    changed = outside_code(upper, lambda match: match[0].upper(), text)
    assert changed == "ONE `two` THREE\n```\nfour ` five\n```\nSIX ``sev`en`` EIGHT\n"


@pytest.mark.parametrize(
    ("uri", "link", "there"),
    [
        ("how-to/a.md", "../concepts/b.md#x", "../concepts/b.md#x"),
        ("how-to/a.md", "../../benchmarks/README.md", "../project/benchmarks/README.md"),
        ("project/benchmarks/README.md", "../docs/concepts/b.md", "../../concepts/b.md"),
        ("project/CONTRIBUTING.md", "ARCHITECTURE.md", "ARCHITECTURE.md"),
        ("project/CONTRIBUTING.md", "tasks.py", None),
        ("project/CONTRIBUTING.md", "nowhere.md", "nowhere.md"),  # mkdocs complains about it
        ("how-to/a.md", "https://example.org/x.md", "https://example.org/x.md"),
        ("how-to/a.md", "#part", "#part"),
    ],
)
def test_links_lead_to_the_page_where_the_site_has_it(uri, link, there):
    places = {
        *("how-to/a.md", "concepts/b.md", "project/benchmarks/README.md"),
        *("project/CONTRIBUTING.md", "project/ARCHITECTURE.md"),
    }
    shown = site_hooks.rewritten(f"See [the page]({link}), `[x](y)`.", uri, places)
    assert shown == f"See {f'[the page]({there})' if there else 'the page'}, `[x](y)`."


class Elements(HTMLParser):
    """Counts the elements of a page."""

    def __init__(self, text):
        super().__init__()
        self.names = Counter()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names[tag] += 1


@pytest.fixture(scope="module")
def site_renderer():
    config = mkdocs_config.load_config(str(ROOT / "mkdocs.yml"))
    return markdown.Markdown(
        extensions=config.markdown_extensions, extension_configs=config.mdx_configs
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_site_shows_the_structure_that_github_shows(page, site_renderer):
    """The site's Markdown differs from GitHub's: it nests lists by four spaces, for example."""
    text = page.read_text("utf-8")
    github = markdown_it.MarkdownIt("commonmark").enable("table").render(text)
    ours, theirs = (Elements(html).names for html in (site_renderer.reset().convert(text), github))
    assert {name: ours[name] for name in ALIKE} == {name: theirs[name] for name in ALIKE}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site from a copy of the documentation with one bad page, and its warnings."""
    copy = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", copy / "docs")
    for name in ("mkdocs.yml", *TOP):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    bad = "# Bad\n\n[a](no-such-page.md) [b](../index.md#no-such-heading)\n"
    (copy / "docs" / "how-to" / "bad.md").write_text(bad)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": f"{copy}:{ROOT}", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return copy / "build" / "site" / __version__, done


def test_nothing_is_wrong_but_what_is_wrong_on_purpose(built):
    """A page without a place, a link to nowhere, a heading that does not exist; nothing else."""
    _, done = built
    assert done.returncode != 0
    first, second, third = done.stderr.split("WARNING -")[1:]
    assert 'not included in the "nav"' in first
    assert re.findall(r"\S+\.md", first) == ["how-to/bad.md"]
    assert "no-such-page.md" in second
    assert "#no-such-heading" in third


def test_every_page_of_llms_txt_and_of_a_finding_is_there(built):
    site, _ = built
    linked = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text("utf-8"))
    assert len(linked) > 150
    assert [page for page in linked if not (site / page).is_file()] == []
    pages = [rule.docs.removesuffix(".md") + ".html" for rule in all_rules()]
    assert [page for page in pages if not (site / page).is_file()] == []


def test_only_the_documentation_is_published(built):
    site, _ = built
    kinds = {
        path.suffix for path in site.rglob("*") if path.is_file() and "assets" not in path.parts
    }
    assert kinds == {".html", ".md", ".svg", ".png", ".txt", ".json", ".xml", ".gz"}


def test_pages_load_nothing_from_another_site(built):
    site, _ = built
    for page in (site / "index.html", site / "reference" / "rules" / "index.html"):
        loaded = re.findall(r"<(?:link|script|img)[^>]+(?:href|src)=\"([^\"]+)\"", page.read_text())
        assert loaded
        assert [each for each in loaded if "//" in each] == []
