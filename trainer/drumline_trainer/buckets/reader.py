"""`python -m drumline_trainer.buckets.reader URL LIMIT`: an object on standard output.

What fails is one line on standard error, and its kind (`errno`) the exit code; see `read_apart`.
"""

from __future__ import annotations

import errno
import sys

from drumline_trainer.buckets.failures import StoreError
from drumline_trainer.buckets.path import BucketPath


def main(url: str, limit: str) -> int:
    """Write the object. Returns an exit code."""
    try:
        body = BucketPath.parse(url).read(limit=int(limit))
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        return errno.EREMOTEIO if error.may_come_back else errno.EINVAL
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return error.errno or errno.EIO
    sys.stdout.buffer.write(body)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
