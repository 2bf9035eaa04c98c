"""When waiting gangs will probably start: simulated, rough and corrected forecasts."""
