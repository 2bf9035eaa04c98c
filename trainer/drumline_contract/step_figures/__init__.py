"""Figures about steps that ranks report and agents compare."""
