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
suite=/home/me/lockstep
jobs=$results/jobs
id=$SLURM_JOB_ID
stop=$jobs/stop-$id # once it is there, the ranks end in order
failed=0            # exit code: 1 once a launch is incomplete
stopping=           # why nothing more begins
lost=               # nodes that answer no more
running=            # process of the srun that runs
mend=               # key of the site file that is to be mended if what runs now fails
# Where a node or a rank leaves the key, or the variable, that names what it lacks.
export LOCKSTEP_MEND=$jobs/.mend-$id
keeper=             # process that removes what the job leaves on its nodes
# What an outer job asked for is not for ours; what ours needs, each srun is told.
unset PYTHONPATH "${!SLURM_CPU_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_CPUS_PER_GPU \
    SLURM_GPUS SLURM_CLUSTERS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_PER_TASK \
    SLURM_GPU_BIND SLURM_DISTRIBUTION
rm -f -- "$stop" "$LOCKSTEP_MEND" "$jobs/exit-$id.json" # of a job that was requeued: it runs again

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
    printf '{"job_id": "%s", "job": "%s", "exit_code": %d, "stopped": %s, "lost": "%s", "mend": "%s", "ended": "%s"}\n' \
        "$id" ladder "$1" "$stopped" "$lost" "$mend" "$ended" >"$jobs/.exit-$id.tmp" &&
        mv -- "$jobs/.exit-$id.tmp" "$jobs/exit-$id.json"
}

finish() { # whatever ended the job: $? says how
    local code=$? rc
    trap - EXIT
    trap '' TERM USR1
    set +e
    [ -z "$running" ] || kill "$running" 2>/dev/null
    [ -n "$mend" ] || mend=$(head -n 1 -- "$LOCKSTEP_MEND" 2>/dev/null | LC_ALL=C tr -cd '[:alnum:]._')
    rm -f -- "$LOCKSTEP_MEND"
    rm -f -- "$jobs/.store-$id" "$jobs/.store-$id.txt"
    record_end "$((code ? code : 1))" # until what follows has ended well
    [ -z "$keeper" ] || leave_nodes || [ "$code" -ne 0 ] || code=1
    after # not in a list: || would take its set -e
    rc=$?
    [ "$rc" -eq 0 ] || [ "$code" -ne 0 ] || code=1
    record_end "$code"
    exit "$code"
}
trap warned USR1
trap 'stopping=ended; exit 143' TERM
trap finish EXIT

await() { # await PROCESS: its exit code, also if the warning ends the wait
    local rc=0
    wait "$1" || rc=$?
    while [ "$rc" -gt 128 ] && kill -0 "$1" 2>/dev/null; do
        rc=0
        wait "$1" || rc=$?
    done
    return "$rc"
}

after() (
    set -e
rm -r /scratch/me/data
)

set +u # what a site loads is not written for it
type module >/dev/null 2>&1 || . /etc/profile || :
module purge || say "module purge ended with $?; the modules are loaded all the same"
mend=shell_before
ulimit -l unlimited
mend=modules
module load CUDA/12.6 || { say 'module CUDA/12.6 cannot be loaded'; exit 1; }
module load 'Python 3' || { say 'module Python 3 cannot be loaded'; exit 1; }
mend=venv
. '/home/me/my venv/bin/activate'
export PYTHONPATH=$suite${PYTHONPATH:+:$PYTHONPATH}
export NCCL_DEBUG=WARN
export LOCKSTEP_LAUNCHER=slurm PYTHONNOUSERSITE=1
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
set -u
mend=

cd "$results"

# The store where ranks meet is none of theirs: whichever rank dies, the others learn of it. It
# serves until its input ends, which this shell alone holds open.
serve() {
    rm -f -- "$jobs/.store-$id"
    # shellcheck disable=SC2034 # nothing is said to it
    coproc LOCKSTEP_SERVER {
        exec python3 -m lockstep.world.store \
            --host "${hosts%%$'\n'*}" --address-file "$jobs/.store-$id" >>"$jobs/.store-$id.txt" 2>&1
    }
}

meet() { # let the ranks of the next step meet where those of no other step do
    local give_up=$((SECONDS + 600))
    [ -n "${LOCKSTEP_SERVER_PID:-}" ] || serve
    until [ -s "$jobs/.store-$id" ]; do
        if [ -z "${LOCKSTEP_SERVER_PID:-}" ] || [ "$SECONDS" -ge "$give_up" ]; then
            say "the store where ranks meet does not serve on ${hosts%%$'\n'*}; it said:"
            cat -- "$jobs/.store-$id.txt"
            exit 1
        fi
        sleep 0.2
    done
    LOCKSTEP_STORE=$(<"$jobs/.store-$id")
    LOCKSTEP_STORE_PREFIX=$(</proc/sys/kernel/random/uuid)
    export LOCKSTEP_STORE LOCKSTEP_STORE_PREFIX
}

serve # it starts while the image is read and staged
# One task on each node, beside what runs there: it takes no CPU, memory or GPU from that.
on_nodes=(srun --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1
    --mem=0 --gres=none --mpi=none --export=ALL --kill-on-bad-exit=1)

# Every node has a folder of this job's own. Whatever ends the job, $keeper's task on each node
# copies what ranks left in out/ to the results and removes the folder: once Slurm ends a job no
# new step can begin, but those that run get a signal first.
scratch=/scratch/me/lockstep-$id
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
"${on_nodes[@]}" bash -c "$stage_in" stage "$scratch" '' ''  </dev/null &
running=$!
await "$running" || { say "staging in failed"; exit 1; }
running=
stage_in_s=$(seconds_since "$began")

start=()
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
    meet
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

amount() { # amount -l|-c FILE: print how many lines or bytes it has
    if [ -e "$2" ]; then wc "$1" <"$2"; else echo 0; fi
}

shorten() { # shorten LOG: of one that a rank has flooded keep the beginning and the end
    local bytes
    bytes=$(wc -c <"$1")
    [ "$bytes" -gt 67108864 ] || return 0
    {
        head -c 1048576 -- "$1"
        printf '\nlockstep: of %d bytes all but the first and last 1048576 are left out\n' "$bytes"
        tail -c 1048576 -- "$1"
    } >"$1.tmp"
    mv -- "$1.tmp" "$1"
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
    local name=$1 folder=$measured/$1 rc num_lines num_bytes began answer measure follows=(again)
    local journal=$folder/journal.jsonl log=$folder/log.txt
    [ -n "$stopping" ] || [ ! -e "$stop" ] || stopping='there is a stop file'
    if [ -n "$stopping" ]; then
        say "$name: not started, for $stopping"
        failed=1
        return
    fi
    mkdir -p -- "$folder"
    shape_of "$2"
    measure=("${tool[@]}" python3 -m pytest "$suite/bench" "${options[@]}" --label=launch="$name"
        --label=repeat="$3" ${4:+"--part=$4"} --journal="$journal")
    # Whatever ends a step, the other cases follow in another one where that is of use.
    while [ "${follows[0]}" = again ]; do
        rc=0
        num_lines=$(amount -l "$journal")
        num_bytes=$(amount -c "$log")
        printf -v began '%(%s)T' -1
        step "$log" "${measure[@]}" "${follows[@]:2}" || rc=$?
        answer=$("${start[@]}" python3 -m lockstep.campaign.next "$folder" --num-lines="$num_lines" \
            --num-log-bytes="$num_bytes" --began="$began" --exit-code="$rc" --stop-file="$stop" </dev/null) ||
            answer=$'unknown\n'"srun ended with $rc; what follows cannot be told"
        mapfile -t follows <<<"$answer"
        say "$name: ${follows[1]-}"
        shorten "$log"
        case ${follows[0]} in
            done) return ;;
            stopped) stopping=${stopping:-'there is a stop file'} ;;
            *) nodes_answer ;;
        esac
        [ -z "$stopping" ] || break
    done
    failed=1
}

# One allocation for the whole ladder; other repeats are jobs of their own, unless the campaign has
# share_job.
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
