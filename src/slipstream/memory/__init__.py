"""Live bytes by kind, by module and by line over one observed step; what a remedy would free, what would fit."""
