"""The report as one self-contained page for a browser: a function of the session, and of the user's source files where
they still read as they did. Loads nothing from anywhere, measures nothing."""
