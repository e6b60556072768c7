"""Renderers: terminal, live line, HTML, JSON, notebook. Each is a function of a session. Nothing here measures or needs
torch.
"""
