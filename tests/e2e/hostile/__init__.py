"""What a tenant who means harm does to a cluster: specs, deeds, and the image's programs."""
