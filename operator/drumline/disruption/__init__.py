"""PURE: every spot, maintenance and health signal of a node -> one `Disruption`.

Clouds, autoscalers and health monitors each mark nodes in words of their own. Here the words are
rows of a table (`table`), read by one function (`signals.signals_of`) and folded into what is to
be done about the node (`verdict.verdict_of`). Nothing here knows a clock or a Kubernetes client.
"""
