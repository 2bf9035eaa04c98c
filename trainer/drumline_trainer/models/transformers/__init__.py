"""Any causal language model of the library transformers, trained as that library builds it.

`module` builds it without storage and gives it the interface of `models`: tokens in, logits out,
layers as units of sharding. `documents` keeps documents of a window apart. `weights` fills the
slices of a rank, and `exported` writes a folder in the model's own names.

The library is imported where a run asks for it. It never runs code of a folder (`auto_map` is not
read) and never opens a pickle: all files go through `models.hugging_face.files`.
"""
