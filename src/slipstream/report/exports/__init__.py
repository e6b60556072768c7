"""A session for other programs: traces, event files, trackers. Functions of a session, like every report."""
