#!/bin/bash
#SBATCH --job-name=ladder-w8
#SBATCH --partition=gpu
#SBATCH --account=project
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=h100:4
#SBATCH --mem=480G
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
#SBATCH --output=/results/ladder/jobs/slurm-%j.out
#SBATCH --no-requeue
#SBATCH --exclusive
# Submitted again, this script measures only what its journals do not hold yet.
set -euo pipefail

results=/results/ladder
suite=/opt/lockstep
failed=0  # exit code: 1 once a launch is incomplete
stopping= # set when the time is nearly over
number=0  # of the step
trap 'stopping=yes' USR1
# How an outer job binds its CPUs is not for ours.
unset "${!SLURM_CPU_BIND@}"

export NCCL_DEBUG=WARN
export LOCKSTEP_LAUNCHER=slurm PYTHONNOUSERSITE=1
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${hosts%%$'\n'*}

# Each rank hands on what is its own; nothing else of the host enters the image.
export APPTAINERENV_NCCL_DEBUG="$NCCL_DEBUG"
export APPTAINERENV_PYTHONPATH=$suite APPTAINERENV_PYTHONNOUSERSITE=1
image_sha256=$(sha256sum -- /images/lockstep.sif)
export LOCKSTEP_IMAGE_SHA256=${image_sha256%% *}
# shellcheck disable=SC2016 # a rank expands it, not this shell
hand_on='for name in $(compgen -e); do
    case $name in
        SLURM_*|LOCKSTEP_*|MASTER_*|CUDA_VISIBLE_DEVICES) export "APPTAINERENV_$name=${!name}" ;;
    esac
done
exec "$@"'
start=(bash -c "$hand_on" rank apptainer exec --cleanenv --nv --bind=/results/ladder --bind=/scratch --no-home /images/lockstep.sif python3 -m pytest)

say() {
    printf '%(%FT%TZ)T lockstep: %s\n' -1 "$*"
}

free_port() { # free_port PORT: print it, or the next one that nobody listens to
    local port=$1
    while (exec 3<>"/dev/tcp/$MASTER_ADDR/$port") 2>/dev/null; do
        port=$((port + 1))
    done
    echo "$port"
}

recorded() { # recorded JOURNAL: print how many lines it has
    if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi
}

step() { # step FOLDER OPTION...: one srun over the ranks of $shape
    local folder=$1 rc=0 pid
    shift
    number=$((number + 1))
    # Below the ports that systems hand out, and not that of a neighbour's job or step.
    MASTER_PORT=$(free_port $((20000 + (SLURM_JOB_ID * 16 + number) % 10000)))
    export MASTER_PORT
    srun "${shape[@]}" --relative=0 --cpus-per-task=16 --cpu-bind=cores \
        --mpi=none --export=ALL --kill-on-bad-exit=1 \
        "${start[@]}" "$suite/bench" "$@" </dev/null >>"$folder/log.txt" 2>&1 &
    pid=$!
    wait "$pid" || rc=$?
    if [ -n "$stopping" ] && [ "$rc" -gt 128 ]; then # the warning ended the wait, not the step
        rc=0
        wait "$pid" || rc=$?
    fi
    return "$rc"
}

launch() { # launch NAME OPTION...: whatever becomes of it, the next one is made
    local name=$1 folder=$results/launches/$1 rc=0 again=0 before
    shift
    if [ -n "$stopping" ]; then
        say "$name: not started, for the time is nearly over"
        failed=1
        return
    fi
    mkdir -p "$folder"
    before=$(recorded "$folder/journal.jsonl")
    step "$folder" "$@" || rc=$?
    if [ "$rc" -eq 5 ] && [ -s "$folder/journal.jsonl" ]; then
        rc=0 # pytest: nothing was left to measure
    fi
    say "$name: srun ended with $rc"
    [ "$rc" -ne 0 ] || return 0
    failed=1
    # A failed case ends its launch; the others follow as long as that records more of them.
    while [ "$again" -ne 5 ] && [ -z "$stopping" ] &&
        [ "$(recorded "$folder/journal.jsonl")" -ge $((before + 2)) ]; do
        before=$(recorded "$folder/journal.jsonl")
        again=0
        step "$folder" "$@" --skip-failed || again=$?
        say "$name: srun for the other cases ended with $again"
        [ "$again" -ne 0 ] || return 0
    done
}

ulimit -l unlimited
cd "$results"

# The repeats of one world size.
shape=(--nodes=2 --ntasks=8 --ntasks-per-node=4 --gpus-per-node=h100:4)
launch w8-r0 -m 'strong or weak' --size=node --global-batch=1024 --seed=0 --device=cuda --threads-per-rank=16 --label=campaign=ladder --label=studies=strong,weak --label=site=here --label=launch=w8-r0 --label=repeat=0 --journal=/results/ladder/launches/w8-r0/journal.jsonl --resume
launch w8-r1 -m 'strong or weak' --size=node --global-batch=1024 --seed=0 --device=cuda --threads-per-rank=16 --label=campaign=ladder --label=studies=strong,weak --label=site=here --label=launch=w8-r1 --label=repeat=1 --journal=/results/ladder/launches/w8-r1/journal.jsonl --resume

exit "$failed"
