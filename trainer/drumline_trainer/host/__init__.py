"""What Linux offers this process: processors, network interfaces, prctl. No dependencies."""
