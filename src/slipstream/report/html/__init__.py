"""The report as one self-contained HTML page: a function of the session, and of the user's source files if they are
unchanged. The page loads nothing from elsewhere, and nothing here measures.
"""
