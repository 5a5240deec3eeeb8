"""What is found in a batch script: each rule on a bad and a good one, whole scripts, noise."""

import os
import shlex
import sys
from pathlib import Path

import pytest
import stand_ins
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.before.lint import shell
from lockstep.before.lint.batch import Job, load
from lockstep.before.lint.batch_rules import BATCH
from lockstep.before.lint.rules import judge
from lockstep.before.lint.shell import read_shell
from lockstep.slurm.submit.script import LIBRARY, library

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
HEAD = "#!/bin/bash\n#SBATCH --time=10\n"
TWO_NODES = "#SBATCH --nodes=2 --ntasks-per-node=4\n"
SRUN = "srun --kill-on-bad-exit=1"
TOGETHER = "--nnodes=2 --rdzv-endpoint=n1:$port"
# rule -> (a script that breaks it, one that breaks none); both follow HEAD
EXAMPLES = {
    "DIRECTIVE-LATE": ("cd /tmp\n#SBATCH --mem=1G\n", "#SBATCH --mem=1G\ncd /tmp\n"),
    "DIRECTIVE-SPELLING": ("#sbatch --mem=1G\n", "#sbatch -N 4 this.sh\n"),
    "DIRECTIVE-OFF": ("##SBATCH --mem=1G\n", "## SBATCH: all of them\n"),
    "DIRECTIVE-VARIABLE": ("#SBATCH -o $HOME/%j.out\n", "#SBATCH -o %j.out\n"),
    "OUTPUT-FOLDER": ("#SBATCH -o nowhere/%j.out\n", "#SBATCH -o /no/such/place/%j.out\n"),
    "GPU-PER-TASK": (
        f"{TWO_NODES}#SBATCH --gpus-per-task=1\n{SRUN} python a.py\n",
        f"#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-task=4\n"
        f"{SRUN} -c 8 torchrun {TOGETHER} a.py\n",
    ),
    "TASKS-CONTRADICT": (
        "#SBATCH --ntasks=1 --ntasks-per-node=2\n", "#SBATCH -N 1 -n 2 --ntasks-per-node=2\n",
    ),
    "SIGNAL-STEPS": ("#SBATCH --signal=USR1@60\n", "#SBATCH --signal=B:USR1@60\n"),
    "TORCHRUN-APART": (
        f"#SBATCH -N 2 --ntasks-per-node=1\n{SRUN} torchrun --nproc-per-node=4 a.py\n",
        f"#SBATCH -N 2 --ntasks-per-node=1\n{SRUN} torchrun --nproc-per-node=4 {TOGETHER} a.py\n"
        f"{SRUN} --nodes=1 torchrun --standalone a.py\n",
    ),
    "TASKS-X-NPROC": (
        f"{TWO_NODES}GPUS=4\n{SRUN} bash -c 'torchrun --nproc-per-node $GPUS a.py'\n",
        f"#SBATCH -N 2 --ntasks-per-node=1\n{SRUN} torchrun --nproc-per-node=4 {TOGETHER} a.py\n",
    ),
    "TORCHRUN-ONE-NODE": (
        "#SBATCH -N 2 --ntasks-per-node=1\ntorchrun --nnodes=2 a.py\n",
        "#SBATCH -N 1\ntorchrun --standalone a.py\n",
    ),
    "NO-SRUN": (f"{TWO_NODES}python -u train.py\n", f"{TWO_NODES}mpirun python train.py\n"),
    "TASKS-GPUS": (
        f"{TWO_NODES}#SBATCH --gres=gpu:a100:8\n{SRUN} -c 8 python ddp.py\n",
        f"{TWO_NODES}#SBATCH --gres=gpu:a100:4\n{SRUN} -c 8 python ddp.py\n",
    ),
    "WORKERS-GPUS": (
        "#SBATCH --gres=gpu:2\ntorchrun --standalone --nproc_per_node=4 a.py\n",
        "#SBATCH --gres=gpu:4\ntorchrun --standalone --nproc_per_node=4 a.py\n",
    ),
    "WORLD-SIZE": (
        f"{TWO_NODES}export WORLD_SIZE=4\n{SRUN} python a.py\n",
        f"{TWO_NODES}N=2\nexport WORLD_SIZE=$(($N * 4))\n{SRUN} python a.py\n",
    ),
    "INIT-VARIABLES": (
        f"{TWO_NODES}#SBATCH -D {DATA}/lint\n{SRUN} python -u join.py --lr 1\n",
        f"{TWO_NODES}#SBATCH -D {DATA}/lint\nexport WORLD_SIZE=8 MASTER_ADDR=n1\n"
        f"{SRUN} python join.py\n{SRUN} python nowhere.py\n",
    ),
    "GLOO": (
        f"{TWO_NODES}#SBATCH --gres=gpu:4\n{SRUN} -c 8 python a.py --dist-backend gloo\n",
        f"{TWO_NODES}#SBATCH --gres=gpu:4\n{SRUN} -c 8 python a.py --dist-backend nccl\n",
    ),
    "PROFILER-AROUND-SRUN": (
        f"nsys profile -o trace {SRUN} python a.py\n",
        f"{SRUN} nsys profile -o 'trace-%q{{SLURM_PROCID}}' python a.py\n",
    ),
    "CONTAINER-AROUND-SRUN": (
        f"apptainer exec a.sif bash -c '{SRUN} python a.py'\n",
        f"{SRUN} apptainer exec a.sif bash -c 'python a.py'\n",
    ),
    "NODE-RANK-BATCH": (
        f'{TWO_NODES}{SRUN} bash -c "python a.py --node_rank=$SLURM_NODEID"\n',
        f"{TWO_NODES}{SRUN} bash -c 'python a.py --node_rank=$SLURM_NODEID'\n"
        f'{SRUN} bash -c "RANK=\\$SLURM_PROCID python a.py"\n',
    ),
    "SACCT-IN-JOB": (
        'used=$(sacct -n -j "$SLURM_JOB_ID" -o MaxRSS)\n',
        'before=$(sacct -n -j "$1" -o State)\n',
    ),
    "INSTALL-IN-JOB": ("python3 -m pip install --user x\n", "echo pip install x was done before\n"),
    "VERSION-AS-FILE": ("need package>=1.0\n", "need 'package>=1.0'; test $((a>=1)); ((b>=c))\n"),
    "MASTER-PORT": (
        # The usual script for torchrun on several nodes.
        f"{TWO_NODES}first=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
        'head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$first" hostname --ip-address)\n'
        f"{SRUN} --ntasks-per-node=1 torchrun --nnodes 2 --nproc_per_node 4 --rdzv_id $RANDOM "
        "--rdzv_backend c10d --rdzv_endpoint $head_node_ip:29500 a.py\n",
        "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\n",
    ),
    "MASTER-ADDR": (
        f"{TWO_NODES}export MASTER_ADDR=127.0.0.1\n",
        "#SBATCH -N 1\nexport MASTER_ADDR=127.0.0.1\n",
    ),
    "MEETS-ITSELF": (
        f"#SBATCH -N 2\n{SRUN} bash -c 'MASTER_ADDR=$(hostname) python a.py'\n",
        f"#SBATCH -N 2\nMASTER_ADDR=$(hostname)\n{SRUN} python a.py\n",
    ),
    "NOT-READ": ("echo ${a\n", "echo ${a}\n"),
    "BROKEN-LINE": ("python a.py \\ \n  --lr 1\n", "python a.py \\\n  --lr 1\n"),
    "NO-KILL": (f"{TWO_NODES}srun python a.py\n", f"{TWO_NODES}srun -K1 python a.py\n"),
    "NO-CPUS": (
        f"#SBATCH -c 8\n{SRUN} python a.py\n",
        f"#SBATCH -c 8\nexport SRUN_CPUS_PER_TASK=8\n{SRUN} python a.py\n",
    ),
    "TWO-ENVIRONMENTS": (
        "source venv/bin/activate\napptainer run a.sif\n",
        "source venv/bin/activate\npython a.py\n",
    ),
    "EXIT-CODE": (
        f"{SRUN} python a.py\necho done\n",
        f"{SRUN} python a.py\nrc=$?\necho done\nexit $rc\n",
    ),
    "EXPORT-NAMES": ("srun --export=DATA hostname\n", "srun --export=ALL,DATA=/d hostname\n"),
    "EXPORT-COMMA": ("#SBATCH --export=ALL,A=1,2\n", "#SBATCH --export=ALL,A=1,B=2\n"),
    "CLEANENV": (
        f"{TWO_NODES}{SRUN} apptainer exec -e a.sif python a.py\n",
        f"{TWO_NODES}{SRUN} apptainer exec -e --env-file ranks a.sif python a.py\n",
    ),
    "CONTAINALL": (
        f"{TWO_NODES}{SRUN} singularity run -C a.sif\n",
        f"#SBATCH -N 2 --ntasks-per-node=1\n{SRUN} singularity run -C a.sif\n",
    ),
    "NO-NV": (
        "#SBATCH --gres=gpu:1\napptainer --quiet exec -B /data a.sif nvidia-smi\n",
        "#SBATCH --gres=gpu:1\napptainer --quiet exec -B /data --nv a.sif nvidia-smi\n",
    ),
    "NCCL-VARIABLE": ("export NCCL_P2P_LEVEL=NVLINK\n", "export NCCL_P2P_LEVEL=NVL\n"),
    "DOCKER-SHM": ("docker run --gpus all a b\n", "docker run --gpus all --ipc=host a b\n"),
    "COSTLY-VARIABLE": ("export CUDA_LAUNCH_BLOCKING=1\n", "export CUDA_LAUNCH_BLOCKING=0\n"),
    "INTERFACE-MISSING": ("NCCL_SOCKET_IFNAME=^eth,lo ls\n", "NCCL_SOCKET_IFNAME=^lo ls\n"),
    "DEBUG-IN-TIMING": (f"{SRUN} env NCCL_DEBUG=TRACE python a.py\n", "export NCCL_DEBUG=WARN\n"),
}  # fmt: skip
# those that are about the head itself
WHOLE = {"CRLF": (HEAD.replace("\n", "\r\n"), HEAD)}
INTERFACES = ("lo", "eth0")


def findings(text):
    return judge(Job("job.sh", text, INTERFACES), BATCH)


def names(text):
    return {one.rule for one in findings(text)}


@pytest.mark.parametrize("rule", [one.name for one in BATCH])
def test_each_rule_finds_the_bad_and_leaves_the_good(rule):
    head = "" if rule in WHOLE else HEAD
    bad, good = (WHOLE | EXAMPLES)[rule]
    assert rule in names(head + bad)
    assert findings(head + good) == []


@pytest.mark.parametrize("rule", EXAMPLES)
def test_what_is_not_run_is_not_judged(rule):
    quoted = "cat <<'END' >other.sh\n" + EXAMPLES[rule][0] + "END\n"
    assert findings(HEAD + quoted) == []


@pytest.mark.parametrize("path", sorted((DATA / "golden").glob("*.sh")), ids=lambda path: path.stem)
def test_the_scripts_that_lockstep_renders_are_clean_with_their_library(path, tmp_path):
    source = f'. "$results/jobs/{LIBRARY}"\n'
    text = path.read_text()
    whole = tmp_path / path.name
    whole.write_text(text.replace(source, library()))
    assert source in text
    assert [str(one) for script in (path, whole) for one in judge(load(str(script)), BATCH)] == []


# script -> the lines and rules that a reader should find
SEEDS = {
    "good.sbatch": "",
    "seed_torchrun.sbatch": "8 GPU-PER-TASK, 10 OUTPUT-FOLDER, "
    "11 SIGNAL-STEPS, 15 DIRECTIVE-LATE, 17 INSTALL-IN-JOB, 17 VERSION-AS-FILE, "
    "19 MASTER-ADDR, 20 MASTER-PORT, 21 NCCL-VARIABLE, 22 NCCL-VARIABLE, 23 INTERFACE-MISSING, "
    "24 NCCL-VARIABLE, 26 TASKS-X-NPROC, 26 NO-KILL, 26 NO-CPUS, "
    "29 NODE-RANK-BATCH, 34 SACCT-IN-JOB, 35 EXIT-CODE",
}


@pytest.mark.parametrize("name", SEEDS)
def test_whole_scripts_show_their_errors_and_no_others(name):
    found = judge(load(str(DATA / "lint" / name), INTERFACES), BATCH)
    assert ", ".join(f"{one.line} {one.rule}" for one in found) == SEEDS[name]


# Scripts whose exit code is that of the ranks, and scripts that lose it.
HEARD = [
    "srun -K python a.py || exit 1\necho done\n",
    "if ! srun -K python a.py; then\n  exit 1\nfi\necho done\n",
    "srun -K python a.py && echo done || exit 1\necho $(date)\n",
    "srun -K python a.py\nif [ $? -ne 0 ]; then exit 1; fi\necho done\n",
    "srun -K python a.py\nrc=$?\ncp out /data\n[ $rc = 0 ] || exit $rc\necho done\n",
    "srun -K python a.py | tee log\nexit ${PIPESTATUS[0]}\n",
    "srun -K python a.py &\npid=$!\nwait $pid\n",
    'train() {\n  srun -K "$@"\n}\nend() { rm x; }\ntrain python a.py\n',
    "for n in 1 2; do\n  srun -K -n $n python a.py || exit 1\ndone\necho done\n",
    "trap 'exit 1' ERR\nsrun -K python a.py\necho done\n",
]  # fmt: skip
LOST = [
    "srun -K python a.py || exit 1\nsrun -K python b.py\necho done\n",
    "srun -K python a.py &\nwait\n",
    "{ srun -K python a.py; } | tee log\n",
    "for n in 1 2; do srun -K -n $n python a.py; done\necho done && echo really\n",
]  # fmt: skip


@pytest.mark.parametrize(("text", "rules"), [
    *((text, set()) for text in HEARD), *((text, {"EXIT-CODE"}) for text in LOST),
    # Options, launcher and image stand in variables and arrays.
    ('a=(--ntasks-per-node=4 -K1)\nr="torchrun --nproc_per_node=2"\nsrun "${a[@]}" $r a.py\n',
     {"TASKS-X-NPROC", "MASTER-PORT"}),
    ("exec timeout 60 srun -n 4 python a.py\n", {"NO-KILL"}),
    # One agent for each task is torchrun's business.
    ("srun -K1 --ntasks-per-node=4 torchrun --nproc_per_node=1 --master-port=0 a.py\n", set()),
    # A task's own script is no batch script.
    ("export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID\nexec python a.py\n", set()),
    ("case $1 in\n  srun) echo python ;;\n  *) srun hostname ;;\nesac\n", set()),
    ("set -e\nsrun -K1 python a.py 2>&1 | tee log\n", {"EXIT-CODE"}),
    ("h=$(hostname -i)\nr=\"torchrun --rdzv_endpoint $h:29500\"\nbash -c \"$r a.py\"\n",
     {"MASTER-PORT"}),
    ("export APPTAINERENV_NCCL_DEBUG=TRACE\n", {"DEBUG-IN-TIMING"}),
])  # fmt: skip
def test_commands_are_found_where_they_stand(text, rules):
    assert names("#!/bin/bash\n" + text) == rules


GPUS = f"{TWO_NODES}#SBATCH --gpus-per-node=4 -c 8\n"
KEPT = f"{SRUN} -c 8"
CLEAN = [
    # A monitor beside the ranks is none of them.
    "srun --overlap --ntasks-per-node=1 bash watch.sh &\n"
    f"{KEPT} python a.py\nrc=$?\nkill %1\nexit $rc\n",
    # Options may be added to a list; of two values no reader knows which one counts.
    f'args=(--cpus-per-task=8)\nargs+=(--exact)\n{SRUN} "${{args[@]}}" python a.py\n',
    f"args=--cpus-per-task=8\nargs+=' --exact'\n{SRUN} $args python a.py\n",
    "kill=1\nif [ $1 ]; then kill=0; fi\nsrun -c 8 -K$kill python a.py\n",
    # A function may be for the tasks; what is printed is not run.
    "rank() { export RANK=$SLURM_PROCID; }\nexport -f rank\n"
    f"{KEPT} bash -c 'rank; python a.py'\n",
    "echo 'apptainer exec a.sif --master_port=29500 NCCL_FOO=1'\n",
    f"{KEPT} --container-image=nvcr.io#nvidia/pytorch:24.05-py3 --container-mounts=/a:/b,/c "
    "--container-workdir /b --no-container-mount-home bash -c 'RANK=$SLURM_PROCID python a.py'",
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule"), [
    *((GPUS + text, "") for text in CLEAN),
    # A comment that shows how to submit is none that was meant to be a directive.
    ("#   sbatch -N 4 check.sh\n# sbatch --array=0-9 check.sh\n", ""),
    # GPUs of AMD need no option of Apptainer's.
    (f"{GPUS}ml purge; ml rocm/6.2\n{KEPT} apptainer exec a.sif python a.py\n", ""),
    # The base environment of conda is no venv.
    ("source /opt/miniforge3/bin/activate\nconda activate x\npython a.py\n", ""),
    # Tasks that share their GPUs, and a signal that Lightning's ranks handle.
    (f"{GPUS}#SBATCH --gres-flags=allow-task-sharing --gpus-per-task=1\n", ""),
    ("#SBATCH --signal=SIGUSR1@90\nsrun python train_lightning.py\n", ""),
    # Variables that cost speed, wherever they are set.
    ("NCCL_IB_DISABLE=1 python a.py\n", "COSTLY-VARIABLE warning"),
    # Commands that a blank, a comment or a missing backslash cut in two.
    ("python a.py \\\n  # --lr 1 \\\n  --epochs 2\n", "BROKEN-LINE error"),
    # As many ranks as tasks and GPUs.
    (f"{GPUS}srun hostname\nbash run.sh\npython3 train.py\n", "NO-SRUN error"),
    ("#SBATCH -N 1 -n 1 --gres=gpu:4\npython train.py\n", "TASKS-GPUS note"),
    ("#SBATCH -N 1 --gres=gpu:2\npython a.py &\npython b.py &\nwait\n", ""),
    (f"{GPUS}{KEPT} -N 2 -n 4 bash -c 'python fsdp.py'\n", "TASKS-GPUS warning"),
    ("#SBATCH -N 1 --gpus=2\nn=8\ntorchrun --standalone --nproc-per-node $n a.py\n",
     "WORKERS-GPUS error"),
    # Where nodes meet: one host, one number, of the batch shell.
    (f"{TWO_NODES}MASTER_ADDR=${{SLURM_JOB_NODELIST}}\n", "MASTER-ADDR error"),
    ("#SBATCH -N 2\nc='torchrun --nnodes=2 --rdzv_endpoint=`hostname`:$port a.py'\n"
     f"{SRUN} bash -c \"$c\"\n", "MEETS-ITSELF error"),
    ('a=(--nnodes=2 --rdzv-endpoint="$(hostname):$port" --rdzv-id=$RANDOM)\n'
     f'#\n{SRUN} -N 2 torchrun "${{a[@]}}" a.py\n', ""),
    # With c10d the rank of the batch shell is not read; ranks with GPUs need cores.
    (f"{GPUS}{KEPT} -n1 -N1 torchrun --standalone --rdzv-id=c10d --node_rank=$SLURM_NODEID\n",
     "NODE-RANK-BATCH warning"),
    (f"{TWO_NODES}#SBATCH --gres=gpu:4 --cpus-per-gpu=8\n{SRUN} python a.py\n", ""),
    # The exit code of torch's launcher, and its default port.
    ('l="python -m torch.distributed.run --standalone"\n$l a.py 2>&1 | tee log\n',
     "EXIT-CODE warning"),
    ("#SBATCH --exclusive\ntorchrun --nproc_per_node=2 a.py\n", ""),
    ("srun docker container run a python b.py\n", "DOCKER-SHM warning"),
])  # fmt: skip
def test_costly_and_wrong_launches_are_found_and_usual_ones_are_not(text, rule):
    found = [
        f"{one.rule} {one.severity}" for one in findings(f"{HEAD}#SBATCH --job-name=a\n{text}")
    ]
    assert found == ([rule] if rule else [])


@pytest.mark.parametrize(("source", "severities"), [
    ("from torch.nn.parallel import DistributedDataParallel\n", ["warning"]),
    ("torch.multiprocessing.spawn(train, nprocs=4)\n", []),
    ("import torch\nmodel = load(device_map='auto')\n", []), ("jax.pmap(step)(batch)\n", []),
    ("print('solve')\n", ["note"]),
])  # fmt: skip
def test_a_script_that_is_here_says_whether_it_starts_its_own_ranks(tmp_path, source, severities):
    (tmp_path / "a.py").write_text(source)
    text = f"{HEAD}#SBATCH -N 1 --gres=gpu:4\npython a.py\n"
    found = judge(Job(str(tmp_path / "job.sh"), text), BATCH)
    assert [one.severity for one in found] == severities


def test_a_missing_folder_is_an_error_only_where_slurm_is_known_to_be_old():
    text = f"{HEAD}#SBATCH -D /tmp\n#SBATCH -o logs/%j/out\n"
    severities = {
        slurm: [one.severity for one in judge(Job("job.sh", text, INTERFACES, slurm), BATCH)]
        for slurm in (None, (22, 5), (23, 2), (24, 11))
    }
    assert severities == {None: ["note"], (22, 5): ["error"], (23, 2): [], (24, 11): []}


def test_the_sizes_of_a_heterogeneous_job_are_not_judged():
    one, other = "#SBATCH -N 1 -n 1 -c 16\n", "#SBATCH -N 2 -n 8 -c 8 --gpus-per-task=1\n"
    text = f"export MASTER_ADDR=localhost\n{SRUN} -n1 python a.py : --het-group=1 python b.py\n"
    assert findings(f"{HEAD}{one}#SBATCH hetjob\n{other}{text}") == []
    found = {"GPU-PER-TASK", "MASTER-ADDR", "NO-CPUS"}
    assert names(HEAD + one + other + text) == found


def test_what_a_script_says_reaches_the_terminal_as_one_plain_line():
    (found,) = findings(HEAD + "export NCCL_P2P_LEVEL='\x1b[2J\nNVL'\n")
    assert r"NCCL_P2P_LEVEL=\x1b[2J NVL" in found.message


PIECES = (
    *("\n", "\\\n", " ", "$(", "$((", "${", "`", '"', "'", "(", ")", "}", "<<E", "<<-", "E\n", "#"),
    *("&&", "|", ";;", ">", ">=", "2>&1", "case x in", "esac", "a=(", "$'", "\r\n", "\x00", "\\"),
    *("srun ", "#SBATCH ", "--nodes=2 ", "-n8 ", "torchrun ", "python a.py ", "sacct ", "x=$x$x "),
    *("export NCCL_DEBUG=INFO ", '"${a[@]}" ', "apptainer exec -e i ", "--nproc_per_node=4 "),
    *("$SLURM_PROCID ", "MASTER_PORT=1 "),
)
shell_noise = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=60).map("".join)


@given(shell_noise)
@example("echo ${\U000976bb")  # at which tree-sitter-bash itself crashes
def test_any_text_is_read_to_its_end(text):
    for one in findings("#!/bin/bash\n" + text):
        assert 1 <= one.line <= text.count("\n") + 2
        assert str(one).isprintable()


@given(st.lists(st.text(st.characters(exclude_characters="\0\r"), max_size=12), min_size=1))
def test_words_are_read_as_a_shell_reads_them(given_words):
    (command,) = read_shell("run " + shlex.join(given_words)).commands
    assert [word.text for word in command.words] == ["run", *given_words]
    assert command.live == set()


@pytest.mark.parametrize("text", ["a\\\nb", "'a\nb'", '"$(a\nb)"', "x=(a\nb)"])
def test_a_line_break_inside_a_word_counts(text):
    *_, last = read_shell(f"echo {text}\nnext\n").commands
    assert (last.name, last.line) == ("next", 3)


def lockstep(*arguments, cwd=ROOT):
    return stand_ins.lockstep(shlex.join(["lint", *arguments]), cwd, os.environ["PATH"])


def test_the_command_reports_a_level_and_an_interface_that_do_not_exist(tmp_path):
    bad = HEAD + "export NCCL_P2P_LEVEL=NVLINK NCCL_SOCKET_IFNAME=no-such0\n"
    (tmp_path / "a.sh").write_text(bad)
    ended = lockstep("a.sh", cwd=tmp_path)
    assert ended.returncode == 1
    assert "a.sh:3: NCCL-VARIABLE warning: NCCL_P2P_LEVEL=NVLINK" in ended.stdout
    assert "a.sh:3: INTERFACE-MISSING note: " in ended.stdout
    assert ended.stderr.startswith("1 script: 0 errors, 1 warning, 1 note\n")


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tree_sitter_bash", None)
    shell._parser.cache_clear()
    with pytest.raises(ValueError, match=r"pip install '.*\[lint\]'"):
        names(HEAD)
    shell._parser.cache_clear()
