"""Which recipes race, when a race is decided, and what is remembered. Imports nothing here: `run` reads a recipe."""
