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
# What the host launched in forward, in backward, and in the only bucket of gradients.
LAUNCHED = {"forward": 0.03, "backward": 0.02, "bucket 0": 0.03}
# Name, begin and end on the device, and when the host launched it.
KERNELS = [
    ("sm90_xmma_gemm_f32f32", 10, 40, 1),
    ("vectorized_elementwise_kernel", 40, 60, 6),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 80, 7),
]
# Of the host, which is done long before the device.
RANGES = [
    ("lockstep:forward", 0, 4),
    ("lockstep:backward", 5, 9),
    ("lockstep:bucket 0", 6.5, 7.5),
    ("lockstep:optimizer", 9, 10),
]


def trace_events(factor=1.0):
    """The step as torch.profiler writes it, with ranges of the host beside it."""
    ranges = [
        ("gpu_user_annotation", "ProfilerStep#3", 0, 100, {}),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 10, {"correlation": 9}),
        ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 80, 85),
        ("user_annotation", "DistributedDataParallel.forward", 1, 3),
        *(("user_annotation", *each) for each in RANGES),
    ]
    for number, (name, begin, end, launched) in enumerate(KERNELS):
        args = {"correlation": number}
        ranges.append(("kernel", name, begin, end, args))
        ranges.append(("cuda_runtime", "cudaLaunchKernel", launched, launched + 0.1, args))
    return [
        {"ph": "X", "cat": category, "name": name, "ts": 1e3 * factor * begin,
         "dur": 1e3 * factor * (end - begin), "args": args[0] if args else {}}
        for category, name, begin, end, *args in ranges
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
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT,"
            " correlationId INT, nameId INT);"
            "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT,"
            " globalTid INT);"
        )
        names = [*(name for name, *_ in KERNELS), "lockstep:step"]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names, 1))
        for number, (_, begin, end, launched) in enumerate(KERNELS, 1):
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, ?, ?, 1)",
                (begin * MS, end * MS, number, number),
            )
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 1, ?, 1)",
                (launched * MS, (launched + 1) * MS, number),
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
                *((int(begin * MS), int(end * MS), name, None) for name, begin, end in RANGES),
            ],
        )
    database.close()
    return path


# As `ncu --csv --page raw` prints launches of 1 ms: FLOP on tensor cores and beside them, as the
# roofline sections count them, and the bandwidth of memory.
NCU_RAW = """==PROF== Connected to process 1
"ID","Kernel Name","gpu__time_duration.sum","dram__bytes.sum.per_second",\
"smsp__cycles_elapsed.avg.per_second","sm__warps_active.avg.pct_of_peak_sustained_active",\
"dram__throughput.avg.pct_of_peak_sustained_elapsed",\
"sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_off.sum.per_cycle_elapsed",\
"smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed",\
"derived__smsp__sass_thread_inst_executed_op_ffma_pred_on_x2","device__attribute_display_name"
"","","usecond","Gbyte/second","cycle/nsecond","%","%","inst/cycle","inst/cycle","inst/cycle",""
"0","gemm","1,000","1,000","1","40","30","400,000","0","0","DEVICE"
"1","add","1,000","3,000","1","80","90","0","100","200","DEVICE"
"2","copy","1,000","3,000","1","80","90","0","0","0","DEVICE"
"""
H100 = "NVIDIA H100 80GB HBM3"


def write_ncu(path, device=H100):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(NCU_RAW.replace("DEVICE", device))
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
