"""Limits of each queue and user: quota along the tree, user limits, budgets, fair shares."""
