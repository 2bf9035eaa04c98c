"""Files of tensors in the safetensors format. They contain no pickle.

Checkpoints and Hugging Face folders consist of such files. `layout` defines their bytes. `ranges`
reads parts of a file in a bucket.
"""
