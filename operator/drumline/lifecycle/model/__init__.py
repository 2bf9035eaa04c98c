"""What the life of one job is decided from: the job, its members, its pods, its conditions."""
