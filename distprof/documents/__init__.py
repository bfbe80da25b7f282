"""Reports and other results as text, Markdown and JSON."""
