"""Results as one HTML file that needs nothing else: no network, no further file, no plug-in.

A page is drawn from the same tables, sentences and findings as text and Markdown, so that it never
says anything else. Figures are inline SVG, made by pure functions of the report.

There is no template engine: :mod:`distprof.documents.html.markup` escapes whatever is not
:class:`~distprof.documents.html.markup.Markup` already, mypy checks every call, and the notebook
shares it. Jinja2 would add a dependency, and a file of its own language for each block, without
escaping more. There is no plotting library either: those that can be inlined take 50 kB to 4 MB of
script, need a script before anything is seen, and set inline styles that the page's policy forbids.
"""
