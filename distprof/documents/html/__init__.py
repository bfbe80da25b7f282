"""Results as one self-contained HTML file, drawn from the same parts as text and Markdown.

There is neither a template engine, which would escape no more than typed elements do, nor a
plotting library: those take up to 4 MB of script and set inline styles that the policy forbids.
"""
