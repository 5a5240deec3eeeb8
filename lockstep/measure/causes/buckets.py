"""Which gradient bucket is not hidden: a timeline of DDP's all-reduce behind the backward.

DDP reduces its buckets one after the other, each once its last gradient is ready. With the time
that a bucket is ready before the end of the backward, and its share of the time that all buckets
take alone, the timeline says what of each lies behind that end. The share of a bucket is that of
its bytes: what a message costs however small it is, is spread alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Buckets:
    """The gradient buckets of a step, in the order in which they are reduced.

    Attributes:
        num_bytes: Of each bucket, shape (num_buckets,).
        lead_s: How long before the end of the backward each is ready, shape (num_buckets,).
    """

    num_bytes: Sequence[float]
    lead_s: Sequence[float]

    def exposed_s(self, reduce_s: Array) -> Array:
        """Return what of each bucket's all-reduce lies behind the end of the backward.

        Args:
            reduce_s: Seconds that the all-reduce of all buckets takes alone, shape (...).

        Returns:
            Seconds, shape (..., num_buckets).
        """
        whole = sum(self.num_bytes)
        finish = np.full(np.shape(reduce_s), -np.inf)
        found = []
        for size, lead in zip(self.num_bytes, self.lead_s, strict=True):
            start = np.maximum(finish, -lead)
            finish = start + reduce_s * size / whole
            found.append(np.maximum(finish - np.maximum(start, 0.0), 0.0))
        return np.stack(found, axis=-1)

    def saved_s(self, reduce_s: Array, speed: float) -> Array:
        """Return the exposed seconds that links of so many times the speed save, shape (...)."""
        now, then = self.exposed_s(reduce_s), self.exposed_s(reduce_s / speed)
        return np.asarray((now - then).sum(axis=-1))
