"""Datasets of text, token shards and images; the data cursor; tokenization. No torch."""
