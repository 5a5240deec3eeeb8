"""Profiles whose truth is known: one written as each tool writes it, one of a step that sleeps."""

import gzip
import json
import sqlite3
import subprocess
import sys

from launched import ROOT, environ

MS = 1_000_000  # of a millisecond in nanoseconds
# One step of 100 ms: a copy of 10 ms, kernels of 50, an all-reduce of 30 of which 10 run beside
# them, 5 that read a batch, and 15 in which nothing runs.
TRUTH = {"compute_s": 0.05, "exposed_s": 0.02, "copy_s": 0.01, "input_s": 0.005, "idle_s": 0.015}


def trace_events(factor=1.0):
    """The step as torch.profiler writes it, with ranges of the host beside it."""
    ranges = [
        ("gpu_user_annotation", "ProfilerStep#3", 0, 100),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 10),
        ("kernel", "sm90_xmma_gemm_f32f32", 10, 40),
        ("kernel", "vectorized_elementwise_kernel", 40, 60),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 80),
        ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 80, 85),
        ("user_annotation", "DistributedDataParallel.forward", 0, 100),
        ("cuda_runtime", "cudaLaunchKernel", 0, 1),
    ]
    return [
        {"ph": "X", "cat": category, "name": name, "ts": 1e3 * factor * begin,
         "dur": 1e3 * factor * (end - begin)}
        for category, name, begin, end in ranges
    ]  # fmt: skip


def write_trace(path, factor=1.0):
    content = {"distributedInfo": {"rank": 1}, "traceEvents": trace_events(factor)}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def write_sqlite(path):
    """The same step by the schema that Nsight Systems documents."""
    with sqlite3.connect(path) as database:
        database.executescript(
            "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT,"
            " streamId INT, correlationId INT, demangledName INT, shortName INT);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, bytes INT, copyKind INT);"
            "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT,"
            " globalTid INT);"
        )
        names = ["gemm", "elementwise", "ncclDevKernel_AllReduce", "lockstep:step", "data"]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names, 1))
        kernels = [(10, 40, 1), (40, 60, 2), (50, 80, 3)]
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, 1, ?, 1)",
            [(begin * MS, end * MS, name) for begin, end, name in kernels],
        )
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (0, ?, 1000000, 1)", (10 * MS,)
        )
        database.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, 1)",
            [
                (0, 100 * MS, None, 4),
                (80 * MS, 85 * MS, "data", None),
                (0, 100 * MS, "mark", None),
            ],
        )
    database.close()
    return path


SLEEPING = """
import time, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
import lockstep

model = nn.Linear(8, 8)

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.randn(8)

def step(batch):
    with record_function("forward"):
        loss = model(batch).sum()
        time.sleep(0.03)
    with record_function("backward"):
        loss.backward()
        time.sleep(0.02)
    time.sleep(0.01)

loader = torch.utils.data.DataLoader(Slow(), batch_size=4)
drawn = iter(loader)
with profile(activities=[ProfilerActivity.CPU],
             schedule=schedule(wait=1, warmup=1, active=4)) as profiler:
    for _ in range(6):
        step(next(drawn))
        profiler.step()
profiler.export_chrome_trace("trace.json")
lockstep.explain(step, model=model, batches=loader, seconds=3)
"""


def profile_sleeps(folder):
    """Leave trace.json and lockstep-explain.json of a step of known sleeps in a folder."""
    (folder / "sleeps.py").write_text(SLEEPING)
    ran = subprocess.run(
        [sys.executable, "sleeps.py"], cwd=folder, env=environ(ROOT, PYTHONPATH=str(ROOT)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
