"""Exports for other programs: traces, event files, experiment trackers. Each is a function of a session."""
