"""Facilities of Linux for this process: processors, network interfaces, prctl. No dependencies."""
