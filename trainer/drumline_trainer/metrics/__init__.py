"""What a run says about itself: progress lines, heartbeats, the loss of every step, MFU."""
