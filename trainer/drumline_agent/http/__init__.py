"""A small strict HTTP/1.1: messages, server, client, and files over a connection."""
