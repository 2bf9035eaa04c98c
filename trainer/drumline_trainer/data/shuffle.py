"""A random order of n windows without storing it: a permutation computed point by point.

A Feistel network is a bijection of 2k-bit numbers whatever its round function; walking its cycle
until the result is below n restricts it to 0..n-1 (Black and Rogaway 2002, "Ciphers with arbitrary
finite domains"). Memory O(1), expected time O(1): the domain is less than four times n.

Example: n = 5, seed 0, epoch 0; the network permutes 0..15. Position 4 maps to 3, which is the
window. Position 1 maps to 6, which is not below 5; 6 maps to 9, 9 to 5 and 5 to 2, which is the
window. No other position ends at 2, as every number has exactly one predecessor.
"""

from __future__ import annotations

from hashlib import blake2b

_ROUNDS = 4


def permuted(position: int, *, count: int, seed: int, epoch: int) -> int:
    """Return the window at `position` of the epoch's order of `count` windows.

    Args:
        position: position in the epoch.
        count: number of windows.
        seed: seed of the order.
        epoch: number of the epoch.

    Raises:
        ValueError: the position is outside 0..count-1.
    """
    if not 0 <= position < count:
        raise ValueError(f"position {position} is outside an epoch of {count} windows")
    # The domain is a power of 4 because both halves have equal bits. It is below 4 * count for
    # count > 1.
    half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
    # One key per seed and epoch. blake2b does not depend on the host or Python's hash seed.
    key = blake2b(f"{seed}:{epoch}".encode(), digest_size=16).digest()
    value = _feistel(position, half_bits=half_bits, key=key)
    # Cycle walking: the start is below `count`, so the cycle returns to a number below it.
    while value >= count:
        value = _feistel(value, half_bits=half_bits, key=key)
    return value


def _feistel(value: int, *, half_bits: int, key: bytes) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for round_number in range(_ROUNDS):
        # One Feistel round is invertible whatever `_round` is, because `right` stays known.
        left, right = right, left ^ (_round(right, round_number, key) & mask)
    return left << half_bits | right


def _round(value: int, round_number: int, key: bytes) -> int:
    message = value.to_bytes(8, "little") + bytes([round_number])
    return int.from_bytes(blake2b(message, digest_size=8, key=key).digest(), "little")
