"""What a simulation gives: its outcome, the statistics made of it, and charts of them."""
