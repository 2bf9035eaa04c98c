"""Checkpoints in a bucket of S3 or GCS, with the guarantees that a folder gives.

    PREFIX/index.json                       the owner, and where each committed step lies
    PREFIX/step-00000080.5f1c09ab3d21.4/    the files of a checkpoint, as those of a folder
        rank-00003-of-00008.safetensors, manifest.json, manifest.sha256

Object storage has no rename and no lock. It has the conditional put: an object is replaced only if
it is still the one that was read (`If-Match`), or made only if there is none (`If-None-Match`).
`index.json` is the one object that ever changes, and every change of it is such a put: claim,
commit and retention. So they exclude each other as they do under a folder's lock, and a commit is
one atomic request after all files are there.

Example: generation 2 has read the index, claimed by itself, and writes step 150 into a place of its
own. Generation 3 claims: it puts an index with its name, and removes that place, which the index
does not name. The put with which generation 2 commits is refused, as the index is not the one it
has read; it reads generation 3 there and raises StaleMembershipError.
"""
