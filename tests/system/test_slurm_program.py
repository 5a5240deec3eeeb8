"""Any program on the testbed: a real Slurm starts its ranks, in an image and outside one."""

import json
import shutil
import time

import pytest
from cluster import SHARED, as_user, need_image

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

PATIENCE_S = 300
PROGRAM = """schema = 1
name = "program"
studies = ["command"]
world_sizes = [1, 2, 4]
repeats = 1
rounds = 2
warmup_rounds = 0
threads_per_rank = 1
until_efficiency = 0.6
[command]
line = 'echo rank $SLURM_PROCID of $SLURM_NTASKS; [ $SLURM_PROCID != 0 ] || echo rate {rate}'
sanity = "^rank 1 of|^rank 0 of 1$"
scaling = "weak"
[[command.metrics]]
name = "rate"
unit = "items/s"
regex = "^rate ([0-9]+)"
primary = true
[factors]
rate = [100]
"""


@pytest.fixture(scope="module", autouse=True)
def testbed():
    need_image()


def test_srun_starts_the_ranks_of_a_program_until_it_scales_no_more():
    folder = SHARED / "program of a user"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "program.toml").write_text(PROGRAM)
    for path in (folder, folder / "program.toml"):
        shutil.chown(path, "lockstep")
    sent = as_user("lockstep", "submit", "program.toml", "--site", "testbed", cwd=folder)
    assert sent.returncode == 0, sent.stderr
    results = folder / "results" / "program"
    end = time.monotonic() + PATIENCE_S
    while not list(results.glob("jobs/exit-*.json")):
        assert time.monotonic() < end, sent.stdout
        time.sleep(1)
    (ended,) = [json.loads(path.read_text()) for path in results.glob("jobs/exit-*.json")]
    assert ended["exit_code"] == 0
    assert as_user("lockstep", "status", "--collect", "results/program", cwd=folder).returncode == 0
    # Two ranks at the rate of one: 50 % efficiency, so that four are not begun.
    names = sorted(path.name for path in (results / "launches").iterdir())
    assert names == ["w1-r0", "w2-r0"]
    reported = as_user("lockstep", "report", "results/program", "--json", cwd=folder)
    points = json.loads(reported.stdout)["points"]
    assert [point["parallel_efficiency"] for point in points] == [1.0, 0.5]
