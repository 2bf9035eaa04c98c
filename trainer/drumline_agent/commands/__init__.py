"""Ranks that run a command of the user's image: no zygote, no protocol, only a process."""
