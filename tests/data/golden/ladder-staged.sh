#!/bin/bash
#SBATCH --job-name=ladder
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
# It needs bash 4.4, which RHEL 8 and SLES 15 have, or a later one.
# shellcheck disable=SC2317 # traps call functions, too
set -euo pipefail

results=/results/ladder
suite=/opt/lockstep
jobs=$results/jobs
id=$SLURM_JOB_ID
stop=$jobs/stop-$id # once it is there, the ranks end in order
failed=0            # exit code: 1 once a launch is incomplete
stopping=           # why nothing more begins
lost=               # nodes that answer no more
running=            # process of the srun that runs
number=0            # of the step
keeper=             # process that removes what the job leaves on its nodes
# What an outer job asked for is not for ours; what ours needs, each srun is told.
unset PYTHONPATH "${!SLURM_CPU_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_CPUS_PER_GPU \
    SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_PER_TASK \
    SLURM_GPU_BIND SLURM_DISTRIBUTION
rm -f -- "$stop"

say() {
    TZ=UTC printf '%(%FT%TZ)T lockstep: %s\n' -1 "$*"
}

warned() { # Slurm's signal before the limit: what runs ends in order, nothing more begins
    stopping='the time is nearly over'
    : >"$stop"
}

record_end() { # record_end CODE: as far as it is known, for Slurm may cut what follows
    local ended stopped=false
    TZ=UTC printf -v ended '%(%FT%TZ)T' -1
    [ -z "$stopping" ] || [ -n "$lost" ] || stopped=true
    printf '{"job_id": "%s", "exit_code": %d, "stopped": %s, "lost": "%s", "ended": "%s"}\n' \
        "$id" "$1" "$stopped" "$lost" "$ended" >"$jobs/.exit-$id.tmp" &&
        mv -- "$jobs/.exit-$id.tmp" "$jobs/exit-$id.json"
}

finish() { # whatever ended the job: $? says how
    local code=$? rc
    trap - EXIT
    trap '' TERM USR1
    set +e
    [ -z "$running" ] || kill "$running" 2>/dev/null
    record_end "$((code ? code : 1))" # until what follows has ended well
    [ -z "$keeper" ] || leave_nodes || [ "$code" -ne 0 ] || code=1
    record_end "$code"
    exit "$code"
}
trap warned USR1
trap 'stopping=ended; exit 143' TERM
trap finish EXIT

free_port() { # free_port PORT: print it, or the next one that nobody listens to
    local port=$1
    while (exec 3<>"/dev/tcp/$MASTER_ADDR/$port") 2>/dev/null; do
        port=$((port + 1))
    done
    echo "$port"
}

await() { # await PROCESS: its exit code, also if the warning ends the wait
    local rc=0
    wait "$1" || rc=$?
    while [ "$rc" -gt 128 ] && kill -0 "$1" 2>/dev/null; do
        rc=0
        wait "$1" || rc=$?
    done
    return "$rc"
}

set +u # what a site loads is not written for it
ulimit -l unlimited
export GLOO_SOCKET_IFNAME=hsn0
export NCCL_DEBUG=WARN
export NCCL_SOCKET_IFNAME=hsn0
export LOCKSTEP_LAUNCHER=slurm PYTHONNOUSERSITE=1
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${hosts%%$'\n'*}
set -u

cd "$results"

image_hash() { # print the image's SHA-256; kept, for a large one takes a while to read
    local now hash kept=$jobs/image.sha256
    now=$(stat --dereference --format='%n %s %Y' -- "$image") || return
    if [ "$(tail -n +2 "$kept" 2>/dev/null)" != "$now" ]; then
        hash=$(sha256sum -- "$image") || return
        hash=${hash#\\} # before a name that sha256sum had to escape
        printf '%s\n%s\n' "${hash%% *}" "$now" >"$jobs/.image-$id.tmp"
        mv -- "$jobs/.image-$id.tmp" "$kept"
    fi
    head -n 1 "$kept"
}

image=/images/lockstep.sif
LOCKSTEP_IMAGE_SHA256=$(image_hash)
export LOCKSTEP_IMAGE_SHA256

# One task on each node, beside what runs there: it takes no CPU, memory or GPU from that.
on_nodes=(srun --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1
    --mem=0 --gres=none --mpi=none --export=ALL --kill-on-bad-exit=1)

# Every node has a folder of this job's own. Whatever ends the job, $keeper's task on each node
# copies what ranks left in out/ to the results and removes the folder: once Slurm ends a job no
# new step can begin, but those that run get a signal first.
scratch='/local/my jobs'/lockstep-$id
export LOCKSTEP_SCRATCH=$scratch

# shellcheck disable=SC2016 # a node's task expands it, not this shell
leave='scratch=$1 to=$2/out-$3/$SLURMD_NODENAME mine=$1.$SLURMD_NODENAME
mv --no-target-directory -- "$scratch" "$mine" 2>/dev/null # again: no other may use the name
[ ! -O "$mine" ] || { exec 9<"$mine" && flock 9; } # one copies; its lock ends with it
[ -e "$mine" ] || { [ ! -e "$scratch" ]; exit; } # it did, or moved it back: a failure
if [ -n "$(ls -A -- "$mine/out" 2>/dev/null)" ]; then
    mkdir -p -- "$to" && cp -r -- "$mine/out/." "$to" || { mv -- "$mine" "$scratch"; exit 1; }
fi
rm -rf -- "$mine"'
# shellcheck disable=SC2016
stay='go() { trap "" TERM USR2; kill "$!" 2>/dev/null; bash -c "$4" leave "$1" "$2" "$3"; exit; }
trap "go \"\$@\"" TERM USR2
sleep infinity & # a signal ends the wait for it; or Slurm ends it first, by the same signal
wait
go "$@"'
# shellcheck disable=SC2016
stage_in='set -euo pipefail
scratch=$1 image=$2 sha256=$3
shift 3
(umask 077 && mkdir -p -- "$scratch")
[ -O "$scratch" ] && [ ! -L "$scratch" ] || { echo "$SLURMD_NODENAME: $scratch is another'"'"'s" >&2; exit 1; }
exec 9<"$scratch"
flock 9 # nodes that share the folder copy once
[ ! -e "$scratch/staged" ] || exit 0
mkdir -p -- "$scratch/data" "$scratch/out"
for path; do cp -r -- "$path" "$scratch/data"; done
if [ -n "$image" ]; then
    cp -- "$image" "$scratch/image.sif"
    copied=$(sha256sum <"$scratch/image.sif")
    if [ "${copied%% *}" != "$sha256" ]; then
        echo "$SLURMD_NODENAME: the copy of $image differs: ${copied%% *}, not $sha256" >&2
        exit 1
    fi
fi
touch -- "$scratch/staged"'

seconds_since() { # seconds_since NANOSECONDS
    local ns=$(($(date +%s%N) - $1))
    printf '%d.%09d' $((ns / 1000000000)) $((ns % 1000000000))
}

leave_nodes() { # called once, at the end
    local began tries=0 rc=0
    began=$(date +%s%N)
    # Again and again: a signal that finds no task yet is lost. A node that is lost keeps srun.
    while kill -USR2 "$keeper" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 150 ] || kill -KILL "$keeper" 2>/dev/null
        sleep 0.2
    done
    await "$keeper" ||
        "${on_nodes[@]}" bash -c "$leave" leave "$scratch" "$jobs" "$id" </dev/null || rc=$?
    [ "$rc" -eq 0 ] || say "staging out ended with $rc; $scratch may still be there"
    {
        flock -w 10 3 # where the file system can
        printf '{"job_id": "%s", "stage_in_s": %s, "stage_out_s": %s}\n' \
            "$id" "$stage_in_s" "$(seconds_since "$began")" >&3
    } 3>>"$jobs/staging.jsonl"
    return "$rc"
}

stage_in_s=null
began=$(date +%s%N)
"${on_nodes[@]}" bash -c "$stay" stay "$scratch" "$jobs" "$id" "$leave" </dev/null &
keeper=$!
"${on_nodes[@]}" bash -c "$stage_in" stage "$scratch" "$image" "$LOCKSTEP_IMAGE_SHA256" /data/set '/data/other set' </dev/null &
running=$!
await "$running" || { say "staging in failed"; exit 1; }
running=
stage_in_s=$(seconds_since "$began")
image=$scratch/image.sif

# Each rank hands on what is its own; nothing else of the host enters the image.
export APPTAINERENV_GLOO_SOCKET_IFNAME="$GLOO_SOCKET_IFNAME"
export APPTAINERENV_NCCL_DEBUG="$NCCL_DEBUG"
export APPTAINERENV_NCCL_SOCKET_IFNAME="$NCCL_SOCKET_IFNAME"
export APPTAINERENV_PYTHONPATH=$suite APPTAINERENV_PYTHONNOUSERSITE=1
# shellcheck disable=SC2016 # a rank expands it, not this shell
hand_on='for name in $(compgen -e); do
    case $name in
        SLURM_*|LOCKSTEP_*|MASTER_*|CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES) export "APPTAINERENV_$name=${!name}" ;;
    esac
done
exec "$@"'
start=(bash -c "$hand_on" rank apptainer exec --cleanenv --no-eval --rocm --bind=/results/ladder --bind=/scratch --no-home --bind="$scratch" "$image")
options=(-m 'strong or weak' --size=node --global-batch=1024 --seed=0 --device=cuda --threads-per-rank=16 --label=campaign=ladder '--label=studies=strong,weak' --label=site=here --resume --stop-file="$stop" --data-root="$scratch/data")

shape_of() { # shape_of WORLD_SIZE: what srun is told of nodes, ranks and GPUs
    case $1 in
        1) shape=(--nodes=1 --ntasks=1 --ntasks-per-node=1 --gpus-per-node=h100:1) ;;
        2) shape=(--nodes=1 --ntasks=2 --ntasks-per-node=2 --gpus-per-node=h100:2) ;;
        4) shape=(--nodes=1 --ntasks=4 --ntasks-per-node=4 --gpus-per-node=h100:4) ;;
        8) shape=(--nodes=2 --ntasks=8 --ntasks-per-node=4 --gpus-per-node=h100:4) ;;
    esac
}

step() { # step LOG COMMAND...: one srun over the ranks of $shape
    local log=$1 rc=0
    shift
    number=$((number + 1))
    # Below the ports that systems hand out, and not that of a neighbour's job or step.
    MASTER_PORT=$(free_port $((20000 + (SLURM_JOB_ID * 16 + number) % 10000)))
    export MASTER_PORT
    srun "${shape[@]}" --relative=0 --cpus-per-task=16 --cpu-bind=cores \
        --mpi=none --export=ALL --kill-on-bad-exit=1 \
        "${start[@]}" "$@" </dev/null >>"$log" 2>&1 &
    running=$!
    await "$running" || rc=$?
    running=
    return "$rc"
}

measured=$results/launches
tool=() # what each rank runs under

recorded() { # recorded JOURNAL: print how many lines it has
    if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi
}

nodes_answer() { # after a failure: a node that is lost would fail every launch that follows
    local said
    [ -z "$stopping" ] || return 0
    said=$(timeout 60 "${on_nodes[@]}" true 2>&1 </dev/null) && return
    # Only one that srun names: a node may as well be slow to end the step before.
    lost=$(sed -n 's/.* on \(node \)\?\([A-Za-z0-9._-]*\).*/\2/p' <<<"$said" |
        grep --fixed-strings --line-regexp -- "$hosts" | sort --unique | paste -sd, -) || :
    if [ -z "$lost" ]; then
        say "not all nodes answer: ${said:-nothing within 60 s}"
        return
    fi
    stopping="$lost answers no more"
}

launch() { # launch NAME WORLD_SIZE REPEAT [PART]: whatever becomes of it, the next one is made
    local name=$1 folder=$measured/$1 rc=0 again=0 before measure
    if [ -n "$stopping" ]; then
        say "$name: not started, for $stopping"
        failed=1
        return
    fi
    mkdir -p -- "$folder"
    shape_of "$2"
    measure=("${tool[@]}" python3 -m pytest "$suite/bench" "${options[@]}" --label=launch="$name"
        --label=repeat="$3" ${4:+"--part=$4"} --journal="$folder/journal.jsonl")
    before=$(recorded "$folder/journal.jsonl")
    step "$folder/log.txt" "${measure[@]}" || rc=$?
    if [ "$rc" -eq 5 ] && [ -s "$folder/journal.jsonl" ]; then
        rc=0 # pytest: nothing was left to measure
    fi
    say "$name: srun ended with $rc"
    [ "$rc" -ne 0 ] || return 0
    failed=1
    if [ "$rc" -eq 75 ] || [ -e "$stop" ]; then
        stopping=${stopping:-'there is a stop file'}
    fi
    nodes_answer
    # A failed case ends its launch; the others follow as long as that records more of them.
    while [ "$again" -ne 5 ] && [ -z "$stopping" ] &&
        [ "$(recorded "$folder/journal.jsonl")" -ge $((before + 2)) ]; do
        before=$(recorded "$folder/journal.jsonl")
        again=0
        step "$folder/log.txt" "${measure[@]}" --skip-failed || again=$?
        say "$name: srun for the other cases ended with $again"
        [ "$again" -ne 0 ] || return 0
    done
}

# One allocation for the whole ladder, its repeats interleaved.
launch w4-r0 4 0
launch w1-r0 1 0
launch w2-r0 2 0
launch w8-r0 8 0
launch w1-r1 1 1
launch w2-r1 2 1
launch w8-r1 8 1
launch w4-r1 4 1

[ -z "$stopping" ] || [ -n "$lost" ] || [ "$failed" -eq 0 ] || exit 75 # as pytest says that it was stopped
exit "$failed"
