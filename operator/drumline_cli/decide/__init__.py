"""`drumline decide`: what one scheduling cycle would do with objects from files."""
