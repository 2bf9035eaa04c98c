"""Two features of Linux: prctl and a filter of peers."""
