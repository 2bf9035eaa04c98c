"""Find nodes for the pods of a gang, or the reason why there are none.

`cluster_view` holds the allocations and free capacity, `search` finds nodes, `domain_selection`
chooses their domain, `explain` says why none were found, and `remedies` what would help.
"""
