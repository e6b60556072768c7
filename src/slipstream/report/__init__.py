"""Renderers of a session: terminal, live line, HTML, JSON and notebook. None of them measures or needs torch."""
