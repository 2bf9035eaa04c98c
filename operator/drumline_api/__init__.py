"""The custom resources of `drumline.dev/v1alpha1` as pydantic models, and the CRDs made of them.

Pydantic stays at this edge: the pure rooms work on frozen dataclasses built from these models.
"""
