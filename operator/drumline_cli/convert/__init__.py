"""`drumline convert`: jobs of other systems as TrainingJobs.

Pure but for `command`: a document becomes a `Conversion`, a job and what is to be said about it.
"""
