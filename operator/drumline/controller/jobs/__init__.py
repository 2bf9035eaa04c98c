"""TrainingJobs: the newest version of each, its conversion, and the writer of its status."""
