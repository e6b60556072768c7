"""The memory of one observed step: its live bytes by kind, module and line, what a remedy would free, and what would
fit."""
