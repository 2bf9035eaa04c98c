"""Money: what a GPU costs for an hour, and what follows. Pure, and integers throughout."""
