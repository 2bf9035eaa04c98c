"""The caches that the API server fills: objects by kind, typed specs, namespaces."""
