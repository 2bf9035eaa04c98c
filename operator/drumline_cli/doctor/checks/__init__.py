"""The checks: pure functions from facts to results, a module a subject."""
