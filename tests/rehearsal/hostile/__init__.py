"""Programs of the image `drumline/hostile`; standard library only."""
