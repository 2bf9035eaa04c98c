"""Turn spot, maintenance and health signals of a node into one `Disruption`. Pure.

Clouds, autoscalers and health monitors each mark nodes with their own taints, labels and
conditions. Here these are rows of a table (`signal_table`), read by `announced_disruptions`.
`merged` combines them into one disruption for each node. Nothing here has a clock or a Kubernetes
client.
"""
