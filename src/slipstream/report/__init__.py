"""Renderers: terminal, live line, JSON, notebook. Every one is a function of a session; nothing here measures, and
nothing here needs torch."""
