"""`drumline diff`: what two jobs asked for and came to."""
