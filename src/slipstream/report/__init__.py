"""Renderers of a session: terminal, HTML, JSON, Markdown, notebook and exports. None of them measures or needs
torch."""
