"""Pseudo-random choices by key: the same key gives the same choice in every process and on every machine.

Used for splits by hash, samples of images for the analysis, and the share of a sample of each worker.
"""

import hashlib


def key_hash(key: str) -> int:
    """Hashes a key: the first 64 bits of its SHA-256, uniform in 0 <= hash < 2^64."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def hash_fraction(key: int) -> float:
    """Returns the first 48 bits of a hash of `key_hash` as a pseudo-random number, 0 <= number < 1."""
    return (key >> 16) / 2**48
