"""Errors that name ranks."""


class RankError(RuntimeError):
    """What went wrong on some ranks, which the message names as the cause."""

    def __init__(self, message: str, *ranks: int) -> None:
        super().__init__(message)
        self.ranks = ranks


class OtherRankError(RankError):
    """What this rank meets only because of others, which the message names."""


class AgreedError(ValueError):
    """What all ranks refuse alike once they have met: each knows that rank 0 says it.

    It has the ranks that the message names as the cause, if it is not about all.
    """

    def __init__(self, message: str, *ranks: int) -> None:
        super().__init__(message)
        self.ranks = ranks
