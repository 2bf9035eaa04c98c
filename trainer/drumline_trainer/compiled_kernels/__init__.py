"""What torch's compiler made of the layers, kept beside the checkpoints.

    <folder of this machine>/<program>/            torch's own cache: graphs, kernels, libraries
    <checkpoints>/kernels/<program>/0-0.kernels    the same as one signed file

A rank compiles into a folder of its machine, which nobody else can write to. After the first step
the first pod of each stage packs that folder and signs it; a new pod whose folder is not there yet
unpacks what was kept, and compiles nothing.

torch loads pickles and machine code from its folder, and the claim of the checkpoints is not ours
alone: other jobs of the namespace may write there. So no byte of a kept file is looked at before
its signature was found right, with a key that is the job's own (`signing_key`). What is refused,
missing or cannot be read is compiled again; nothing here ends a run.
"""
