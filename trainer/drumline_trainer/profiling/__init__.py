"""Looking closely: traces of a window of steps, ranges for nsys, and what ranks did in a hang."""
