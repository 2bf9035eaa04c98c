"""The archive: what is left of a job when its object, its pods and its namespace are gone."""
