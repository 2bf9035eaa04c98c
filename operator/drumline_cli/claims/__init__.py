"""Copy files to and from a claim, and export checkpoints, by a pod without a GPU.

`paths` parses what users write. `claim_pod` is the pod: its manifest, and its life. `transfer`
copies files through `kubectl exec`, and continues a copy that was cut off. `remote_program` runs in
the pod with the standard library alone. Nothing here knows TrainingJobs but `export`.
"""
