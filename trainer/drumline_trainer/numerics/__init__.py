"""Types of numbers below bf16."""
