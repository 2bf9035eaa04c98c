"""A job's Kubernetes objects as JSON: pods and what they contain, Secret, budget, policy."""
