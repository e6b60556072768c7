"""Exports of a session for other programs: traces, event files, experiment trackers."""
