"""Pending gangs: order, equivalence classes, groups, cached rejections and reservations."""
