"""Files of tensors in the format safetensors: `layout` their bytes, `ranges` parts of a bucket's.

Checkpoints and folders of Hugging Face are made of them. No pickle.
"""
