"""A recipe as edits of the user's own source. Reads records and source text alone: no torch, and nothing is run."""
