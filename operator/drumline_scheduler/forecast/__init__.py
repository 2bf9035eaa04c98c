"""Forecast when waiting gangs will probably start: simulated, rough and corrected forecasts."""
