"""`drumline history`: jobs that have ended, from the archive."""
