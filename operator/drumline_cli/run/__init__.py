"""`drumline run`: a folder and a command become a job."""
