"""People's own training scripts under every fault: programs, blows, and what each costs."""
