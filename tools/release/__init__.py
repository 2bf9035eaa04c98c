"""`make release`: chart, images, wheels and what proves where they come from, in build/release."""
