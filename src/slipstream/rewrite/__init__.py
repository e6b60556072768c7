"""Turns a recipe into edits of the user's source. It reads only records and source text. It uses no torch and runs no
code of the user.
"""
