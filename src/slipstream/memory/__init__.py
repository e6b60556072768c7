"""The memory of one observed step: its live bytes by kind, module and line, the bytes that each remedy would free, and
the largest batch that would fit."""
