"""What sacct's text says: known numbers, every form of a size or a time, and never a traceback."""

import pytest
from stand_ins import sacct

from lockstep.slurm import client as slurm
from lockstep.slurm.status.accounting import has_ended, instant, read, size

GIB = 1024**3

# As sacct of Slurm 22.05.8 wrote it, of real jobs.
SLURM_22_05 = """\
JobID|JobIDRaw|State|ExitCode|Elapsed|Submit|Start|End|MaxRSS|MaxVMSize|AveCPU|TotalCPU|ReqMem|AllocTRES|AllocCPUS|NNodes|NTasks|TRESUsageInTot|NodeList
2|2|NODE_FAIL|0:0|00:00:47|1795252857|1795252857|1795252904||||00:00.002|4000M|billing=2,cpu=2,mem=4000M,node=2|2|2|||node[2-3]
2.0|2.0|CANCELLED|0:15|00:00:47|1795252857|1795252857|1795252904|1924K|3016K|00:00:00|00:00.002||cpu=2,mem=4000M,node=2|2|2|2||node[2-3]
22|22|TIMEOUT|0:0|00:01:14|1795253711|1795253711|1795253785||||00:00.001|2000M|billing=1,cpu=1,mem=2000M,node=1|1|1|||node1
22.batch|22.batch|CANCELLED|0:15|00:01:14|1795253711|1795253711|1795253785|3564K|5692K|00:00:00|00:00.001||cpu=1,mem=2000M,node=1|1|1|1|cpu=00:00:00,energy=0,fs/disk=11311,mem=3564K,pages=0,vmem=5692K|node1
24|24|CANCELLED by 1001|0:0|00:00:00|1795253711|None|1795253807||||00:00:00|2000M||1|1|||None assigned
25_3|31|FAILED|1:0|00:00:12|1795253711|1795253716|1795253728||||00:00.003|2000M|billing=1,cpu=1,mem=2000M,node=1|1|1|||node1
25_3.batch|31.batch|FAILED|1:0|00:00:12|1795253716|1795253716|1795253728|3412K|5692K|00:00:00|00:00.003||cpu=1,mem=2000M,node=1|1|1|1|cpu=00:00:00,energy=0,fs/disk=11425,mem=3412K,pages=0,vmem=5692K|node1
25_[4-9%2]|25|PENDING|0:0|00:00:00|1795253711|Unknown|Unknown||||00:00:00|2000M||1|1|||None assigned
"""  # noqa: E501, as sacct says it

# The same, of a job after its preflight, an element that max_running held back, one that waited for
# nodes and was sent by hand, and one whose dependency failed.
WAITS = """\
JobID|JobIDRaw|State|ExitCode|Elapsed|Submit|Eligible|Start|End|MaxRSS|MaxVMSize|AveCPU|TotalCPU|ReqMem|AllocTRES|AllocCPUS|NNodes|NTasks|TRESUsageInTot|NodeList|User|JobName
6|6|COMPLETED|0:0|00:01:40|1795385791|1795385986|1795385986|1795386086||||00:00:00|6G|billing=4,cpu=4,mem=6G,node=1|4|1|||node1|lockstep|led
8_1|13|COMPLETED|0:0|00:00:57|1795385794|1795385936|1795385936|1795385993||||00:00:00|6G|billing=2,cpu=2,mem=6G,node=1|2|1|||node2|lockstep|arr-w1
10|10|FAILED|1:0|00:01:52|1795385803|1795385803|1795386092|1795386204||||00:00:00|6G|billing=2,cpu=2,gres/gpu=1,mem=6G,node=1|2|1|||node1|lockstep|gpufail-preflight
11|11|CANCELLED|0:0|00:00:00|1795385803|Unknown|None|1795386205||||00:00:00|6G||2|1|||None assigned|lockstep|gpufail
12|12|COMPLETED|0:0|00:01:09|1795385803|1795385803|1795386205|1795386274||||00:00:00|6G|billing=2,cpu=2,mem=6G,node=1|2|1|||node1|lockstep|hand
"""  # noqa: E501, as sacct says it


def job(**fields):
    own = {"JobID": "7", "JobIDRaw": "7", "State": "COMPLETED", "ExitCode": "0:0"}
    return own | fields


def test_what_a_real_sacct_says_is_read():
    found = read(SLURM_22_05)
    assert list(found) == ["2", "22", "24", "25_3", *(f"25_{k}" for k in range(4, 10))]
    assert found["2"]["state"] == "NODE_FAIL"
    assert found["2"]["nodes"] == "node[2-3]"
    # No TRESUsageInTot: the largest peak, once for each of the two tasks.
    assert found["2"]["memory_bytes"] == 2 * found["2"]["max_rss_bytes"] == 2 * 1924 * 1024
    assert found["22"]["elapsed_s"] == 74
    assert found["22"]["max_vm_bytes"] == 5692 * 1024
    assert found["22"]["requested_bytes"] == 2000 * 1024**2
    assert found["24"] | {"state": "CANCELLED", "queue_wait_s": None, "nodes": None} == found["24"]
    assert found["25_3"]["raw_id"] == "31"
    assert found["25_3"]["queue_wait_s"] is None  # it was not asked when the job might have begun
    assert [has_ended(one) for one in found.values()] == [True] * 4 + [False] * 6


def test_a_job_waits_only_while_it_might_start_and_its_hours_are_of_what_was_allocated():
    accounts = read(WAITS)
    waits = {job_id: account["queue_wait_s"] for job_id, account in accounts.items()}
    assert waits == {"6": 0, "8_1": 0, "10": 289, "11": None, "12": 402}
    assert (accounts["12"]["user"], accounts["12"]["name"]) == ("lockstep", "hand")
    names = ("node_hours", "cpu_hours", "gpu_hours", "billing_hours")
    hours = [accounts["10"][name] for name in names]
    assert hours == [112 / 3600, 2 * 112 / 3600, 112 / 3600, 2 * 112 / 3600]
    assert accounts["6"]["gpu_hours"] is None


def test_cpu_time_is_shared_by_all_cores_and_memory_is_that_of_all_tasks():
    alone = job(Elapsed="08:00:00", AllocCPUS="1", NNodes="1", AllocTRES="cpu=1,mem=32G,node=1")
    step = job(JobID="7.batch", TotalCPU="06:42:00", MaxRSS="28.5G", NTasks="1")
    account = read(sacct(alone, step))["7"]
    shares = [f"{100 * account[f'{what}_efficiency']:.2f}" for what in ("cpu", "memory")]
    assert shares == ["83.75", "89.06"]  # as seff prints them
    wide = job(Elapsed="02:00:00", AllocCPUS="8", AllocTRES="cpu=8,mem=64G,node=2")
    batch = job(JobID="7.batch", TotalCPU="00:00:30", MaxRSS="1G", NTasks="1")
    step = job(JobID="7.0", TotalCPU="0-08:00:00", MaxRSS="10G", NTasks="8",
               TRESUsageInTot="cpu=08:00:00,mem=48G,vmem=90G")  # fmt: skip
    account = read(sacct(wide, batch, step))["7"]
    assert account["cpu_efficiency"] == pytest.approx((8 * 3600 + 30) / (8 * 7200))
    assert account["memory_efficiency"] == 0.75


def test_a_size_is_read():
    sizes = {"0": 0, "1024": 1024, "2048K": 2048 * 1024, "1.50M": 1.5 * 1024**2,
             "28.5G": 28.5 * GIB, "2T": 2 * 1024 * GIB}  # fmt: skip
    sizes |= dict.fromkeys(["", "16Q", "-1K", "K", "9" * 400])
    assert {text: size(text) for text in sizes} == sizes


def test_an_instant_is_seconds_or_a_date():
    assert instant("1795252857") == 1795252857
    assert instant("2026-11-21T09:00:47") - instant("2026-11-21T09:00:00") == 47
    assert [instant(said) for said in ("Unknown", "None", "", "N/A", "0")] == [None] * 5


def test_gpu_hours_are_of_what_was_allocated():
    hours = {
        "billing=16,cpu=16,gres/gpu=4,mem=12G,node=2": 2.0,
        "cpu=16,gres/gpu:h100=3,gres/gpu:a100=1": 2.0,
        "cpu=16,gres/gpu:h100=4,gres/gpu=4": 2.0,
        "": None,
    }
    for tres, expected in hours.items():
        account = read(sacct(job(Elapsed="00:30:00", AllocTRES=tres)))["7"]
        assert account["gpu_hours"] == expected, tres


def test_what_has_not_ended_says_so():
    """Inside its own job sacct says RUNNING, and its numbers are not final."""
    states = ("RUNNING", "PENDING", "COMPLETING", "REQUEUED", "SUSPENDED", "", "CANCELLED by 12")
    found = [read(sacct(job(State=state)))["7"] for state in states]
    assert [has_ended(one) for one in (*found, None)] == [False] * 6 + [True, False]
    assert found[5]["state"] == "unknown"


def test_older_and_newer_columns_do_no_harm():
    newer = "JobID|State|Planned|Elapsed\n7|OUT_OF_MEMORY|00:00:10|00:01:00\n7.batch|OUT_OF_ME+||\n"
    assert read(newer)["7"]["state"] == "OUT_OF_MEMORY"
    assert read(newer)["7"]["elapsed_s"] == 60
    assert read("7|COMPLETED|0:0\n") == {}  # no names of columns
    assert read("") == {}
    assert read(sacct(job())[:-5]) == {}  # a line cut short


def test_no_text_makes_more_elements_than_an_array_may_have():
    said = "[0-999999999,5-999999999]"
    assert len(list(slurm.numbers(said))) == slurm.MAX_ELEMENTS
    assert len(read(f"JobID|State\n7_{said}|PENDING")) == slurm.MAX_ELEMENTS
