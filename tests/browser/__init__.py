"""The page in a real browser: Chromium without a window, spoken to by the DevTools protocol."""
