"""`make demo`: a throwaway cluster, Drumline in it, two jobs that train while you watch."""
