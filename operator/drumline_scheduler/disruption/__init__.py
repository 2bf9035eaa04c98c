"""PURE: every spot, maintenance and health signal of a node -> one `Disruption`.

Clouds, autoscalers and health monitors each mark nodes with their own taints, labels and
conditions. Here these are rows of a table (`signal_table`), read by `announced_disruptions` and
combined into one disruption a node by `merged`. Nothing here has a clock or a Kubernetes client.
"""
