"""Reports the usage of queues, pools and the platform, as statuses and as metrics."""
