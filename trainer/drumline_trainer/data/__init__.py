"""Samples in an order that depends on the seed and a cursor alone. No torch."""
