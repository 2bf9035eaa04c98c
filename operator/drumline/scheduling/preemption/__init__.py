"""Running gangs that give way, shrink, grow, move or are mended."""
