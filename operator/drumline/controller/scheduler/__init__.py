"""The scheduler loop around `drumline_scheduler`: snapshot, decide, write the decisions."""
