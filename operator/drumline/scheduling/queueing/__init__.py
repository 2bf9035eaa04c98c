"""Those who cannot start yet: kinds, groups, reservations, what they are told and when."""
