import pytest

from lockstep.measure.harness import Harness


@pytest.mark.cases("train")
def test_train(lockstep: Harness) -> None:
    """How long does a training take, and how well does the model do afterwards?"""
    from lockstep.trainer.trainer import train

    train(lockstep, **lockstep.factors)
