"""Every causal language model of the installed transformers, tiny, trained beside a plain loop."""
