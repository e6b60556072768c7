"""Turns a recipe into edits of the user's source. Reads only records and source text: it uses no torch and runs
nothing.
"""
