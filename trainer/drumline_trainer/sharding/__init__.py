"""Which part of each global tensor a rank holds, and which ranks it shares work with."""
