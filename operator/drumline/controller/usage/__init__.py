"""What users read: the status of jobs, queues and pools, and Kubernetes events."""
