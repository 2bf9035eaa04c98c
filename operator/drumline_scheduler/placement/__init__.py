"""Where pods can be: the view of who holds what, the search for places, and why there are none."""
