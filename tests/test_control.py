"""The control plane: every rank sees the same list, whoever was late or silent.

Threads stand for ranks; the store and its time-outs are real.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import exchanges
import pytest
from launched import kill, store
from torch.distributed import TCPStore

from lockstep.ranks.control import Control, LostError, Waits

SHORT_S = 0.5


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def ranks(server, world_size, timeout_s):
    """Return one control plane per rank, each with a connection of its own."""
    clients = [
        TCPStore(
            "127.0.0.1", server.port, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
        )
        for _ in range(world_size)
    ]
    return [Control(store, rank, world_size, timeout_s) for rank, store in enumerate(clients)]


def at_once(controls, act):
    """Run act(control) for every rank at the same time and return what each was given."""
    with ThreadPoolExecutor(len(controls)) as pool:
        return list(pool.map(act, controls))


@pytest.mark.parametrize("world_size", [2, 8])
def test_every_rank_is_given_every_value_in_the_order_of_ranks(server, world_size):
    def act(control):
        time.sleep(0.02 * ((control.rank * 5) % 3))  # not in the order of ranks
        return [control.exchange(f"{n}", {"rank": control.rank, "n": n}) for n in range(3)]

    expected = [[{"rank": rank, "n": n} for rank in range(world_size)] for n in range(3)]
    assert at_once(ranks(server, world_size, 30), act) == [expected] * world_size


def test_the_store_does_not_grow_with_the_exchanges(server):
    controls = ranks(server, 3, 30)
    num_keys = []
    for number in range(4):
        at_once(controls, lambda control, name=f"{number}": control.exchange(name, "value"))
        num_keys.append(server.num_keys())
    assert num_keys[1] == num_keys[2] == num_keys[3]


def test_what_was_said_before_under_a_name_is_no_answer(server):
    def act(control):
        first = control.exchange("rounds", [1, control.rank])
        time.sleep(0.2 * control.rank)  # rank 0 must wait for the second value
        return first, control.exchange("rounds", [2, control.rank])

    assert at_once(ranks(server, 2, 30), act) == [([[1, 0], [1, 1]], [[2, 0], [2, 1]])] * 2


def test_many_silent_ranks_cost_one_time_out_together(server):
    zero, *silent, last = ranks(server, 10, SHORT_S)
    start = time.monotonic()
    found = at_once([zero, last], lambda control: control.exchange("case", "here"))
    assert found == [["here", *[None] * len(silent), "here"]] * 2
    assert time.monotonic() - start < SHORT_S * len(silent)


def test_a_rank_that_comes_too_late_is_told_that_it_was_not_there(server):
    zero, late = ranks(server, 2, SHORT_S)
    published = threading.Event()

    def act(control):
        if control is late:
            published.wait()
        found = control.exchange("case", control.rank)
        published.set()
        return found

    assert at_once([zero, late], act) == [[0, None]] * 2


def test_ranks_part_when_all_are_there_and_rank_0_last(server):
    zero, *others, late = ranks(server, 4, 30)
    with ThreadPoolExecutor(4) as pool:
        first, *waiting = [pool.submit(control.leave_together) for control in (zero, *others)]
        server.wait([f"leaving/1/{rank}" for rank in range(3)], timedelta(seconds=30))
        # One is not there yet: none of the others may have gone.
        assert not any(server.check([f"left/{rank}"]) for rank in range(1, 4))
        assert not any(one.done() for one in (first, *waiting))
        waiting.append(pool.submit(late.leave_together))
        first.result()
        # Rank 0 may take the store along: by then each of the others has said that it left.
        assert server.check([f"left/{rank}" for rank in (1, 2, 3)])
        for one in waiting:
            one.result()


def test_a_lost_rank_0_is_waited_for_in_no_further_exchange(server):
    _, one = ranks(server, 2, 0.1)
    with pytest.raises(LostError):
        one.exchange("x", 1)
    one.leave_together()
    assert server.check(["left/1"])
    assert not server.check(["leaving/1/1"])


@pytest.mark.slow
def test_inside_a_case_rank_0_decides_at_its_deadline_and_the_others_wait_a_second_more(server):
    zero, one, two = ranks(server, 3, 30)
    for control in (zero, one, two):
        control.deadline = time.monotonic() + 3 * SHORT_S
    start = time.monotonic()
    assert (
        at_once([zero, one], lambda c: c.settle("call", "here", list, Waits.AFTER_PHASE))
        == [["here", "here", None]] * 2
    )
    with pytest.raises(LostError, match=r"^rank 2 on \S+: rank 0 did not answer within "):
        two.settle("other", "here", list, Waits.AFTER_PHASE)
    assert time.monotonic() - start < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("waits", "found"), [(Waits.AFTER_PHASE, [0, 1]), (Waits.IN_BODY, [0, None])]
)
def test_only_the_end_of_a_phase_is_waited_for_until_the_case_must_be_over(server, waits, found):
    zero, late = ranks(server, 2, SHORT_S)
    for control in (zero, late):
        control.deadline = time.monotonic() + 6 * SHORT_S

    def act(control):
        time.sleep(3 * SHORT_S * control.rank)
        return control.settle("call", control.rank, list, waits)

    assert at_once([zero, late], act) == [found] * 2


def test_a_rank_0_that_failed_on_its_way_is_not_waited_for_until_the_case_must_be_over(server):
    zero, one = ranks(server, 2, SHORT_S)
    for control in (zero, one):
        control.deadline = time.monotonic() + 60

    def act(control):
        if control is one:
            with pytest.raises(LostError, match=r"^rank 1 on \S+: rank 0 did not answer within "):
                control.exchange("support", 1)
        return control.settle("setup", control.rank, list, Waits.AFTER_PHASE)

    start = time.monotonic()
    assert at_once([zero, one], act) == [[0, 1]] * 2
    assert time.monotonic() - start < 30


def test_ranks_meet_three_times_a_case_and_what_one_above_0_reads_does_not_grow():
    few, of_zero, of_another = exchanges.count(2)
    many, of_zero_of_16, of_another_of_16 = exchanges.count(16)
    assert few == many == 3
    assert of_another == of_another_of_16 < 1000
    assert of_zero_of_16 == 8 * of_zero


@pytest.mark.slow
def test_a_lost_store_is_told_from_a_silent_rank(tmp_path):
    with store(tmp_path) as (address, pid), ThreadPoolExecutor(1) as pool:
        port = int(address.rpartition(":")[2])
        one = Control(TCPStore("127.0.0.1", port, wait_for_workers=False), 1, 2, 30)
        waiting = pool.submit(one.exchange, "x", 1)
        kill(pid)
        with pytest.raises(LostError, match=r"^rank 1 on \S+ lost its connection to the ranks'"):
            waiting.result()
