"""The part of each global tensor that a rank holds, and the groups of ranks it works with."""
