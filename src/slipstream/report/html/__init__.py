"""The report as one self-contained HTML page, made from the session and from the user's source files if they are
unchanged. The page loads nothing from elsewhere.
"""
