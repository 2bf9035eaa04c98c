"""The scheduler loop around `drumline.scheduling`: snapshot, decide, write the decisions."""
