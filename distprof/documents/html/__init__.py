"""Results as one self-contained HTML file: no network, no further files, no plug-ins.

A page is drawn from the same tables, sentences and findings as text and Markdown, so it always
agrees with them. Figures are inline SVG, made by pure functions of the report.

There is no template engine: :mod:`distprof.documents.html.blocks` escapes everything that is not
:class:`~distprof.documents.html.blocks.Markup`, mypy checks every call, and notebooks share the
code. Jinja2 would add a dependency and a template file per block, without escaping more. There is
no plotting library either: those that can be inlined take 50 kB to 4 MB of script, show nothing
until the script has run, and set inline styles that the page's policy forbids.
"""
