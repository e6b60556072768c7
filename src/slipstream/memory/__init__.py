"""Live bytes by kind, module and line over one observed step; what a remedy would free, and what would fit."""
