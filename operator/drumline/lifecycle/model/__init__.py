"""Facts that decide the life of one job: the job, its members, its pods, its conditions."""
