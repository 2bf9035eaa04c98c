"""`drumline restore`: what a backup has to become to be applied to a new cluster."""
