"""The loader study: an endless stream of epochs, each with every sample once."""

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lockstep.measure.loading import data, loader_cases
from lockstep.measure.loading.loader_cases import EndlessSampler, Numbered

CPU = torch.device("cpu")
# Two ranks over 10 samples; with the argument "same" both take the first one's share.
CHILD = """
import sys
import torch
from lockstep.measure.loading import loader_cases
from lockstep.ranks import process_group as world

joined = world.join(60, device="cpu", threads_per_rank=1)
rank = 0 if sys.argv[1] == "same" else joined.rank
sampler = loader_cases.EndlessSampler(loader_cases._share(10, 2, rank, seed=5))
indices = iter(sampler)
batches = ((None, torch.tensor([next(indices) for _ in range(3)])) for _ in range(2))
try:
    print(loader_cases._check(batches, 5, 10, joined.device))
except RuntimeError as error:
    print(error)
world.leave()
"""


def stream(num_images, world_size, rank, seed: int = 0):
    return iter(EndlessSampler(loader_cases._share(num_images, world_size, rank, seed)))


@given(st.integers(1, 60), st.integers(1, 7), st.integers(0, 3))
def test_every_epoch_has_each_sample_once_over_all_ranks(num_images, world_size, seed):
    if num_images < world_size:
        with pytest.raises(
            ValueError, match=rf"has {num_images} samples, fewer than the {world_size} ranks"
        ):
            stream(num_images, world_size, 0)
        return
    share = num_images // world_size
    streams = [stream(num_images, world_size, rank, seed) for rank in range(world_size)]
    for _ in range(3):
        taken = [index for stream_ in streams for index in islice(stream_, share)]
        assert len(taken) == len(set(taken)) == share * world_size
        assert set(taken) <= set(range(num_images))


def test_epochs_differ_in_order_and_follow_the_seed():
    def epochs(seed: int) -> list[list[int]]:
        indices = stream(40, 2, 1, seed)
        return [list(islice(indices, 20)) for _ in range(2)]

    first, second = epochs(1)
    assert first != second
    assert epochs(1) == [first, second]
    assert epochs(2) != [first, second]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "says"), [("own", "{'each_sample_once': True}"), ("same", "came 2 times")]
)
def test_ranks_count_their_samples_together(share, says, tmp_path, run_ranks):
    (tmp_path / "child.py").write_text(CHILD)
    ended = run_ranks([["child.py", share]] * 2, tmp_path)
    assert [rank.returncode for rank in ended] == [0, 0], ended
    assert all(says in rank.stdout for rank in ended)


def test_a_loader_with_workers_goes_on_over_epochs(group):
    images = Numbered(data.ImageDataset(*data.generate_images(10, (1, 2, 2))), 10)
    sampler = EndlessSampler(loader_cases._share(10, 1, 0, seed=0))
    batches = iter(DataLoader(images, 4, sampler=sampler, num_workers=1))
    loader_cases._check(batches, 10, 10, CPU)
    workers = [worker.pid for worker in batches._workers]
    later = [next(batches)[1].tolist() for _ in range(12)]
    assert all(len(indices) == 4 for indices in later)
    # 12 samples went to the check, the last two of them from the second epoch.
    indices = [index for batch in later for index in batch][8:]
    assert [sorted(indices[k : k + 10]) for k in (0, 10, 20, 30)] == [list(range(10))] * 4
    assert [worker.pid for worker in batches._workers] == workers
