"""`drumline replay`: decide a captured cycle again and compare."""
