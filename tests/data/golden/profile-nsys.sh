#!/bin/bash
#SBATCH --job-name=ladder-nsys
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
mend=               # key of the site file that is to be mended if what runs now fails
# Where a node or a rank leaves the key, or the variable, that names what it lacks.
export LOCKSTEP_MEND=$jobs/.mend-$id
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
        "$id" ladder-nsys "$1" "$stopped" "$lost" "$mend" "$ended" >"$jobs/.exit-$id.tmp" &&
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

declare -A had=() # what is exported before the site's own lines
for name in $(compgen -e); do had[$name]=${!name-}; done

set +u # what a site loads is not written for it
mend=shell_before
ulimit -l unlimited
export NCCL_DEBUG=WARN
export LOCKSTEP_LAUNCHER=slurm PYTHONNOUSERSITE=1
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
set -u
mend=

cd "$results"

image=/images/lockstep.sif
image_hash() { # print the image's SHA-256; kept, for a large one takes a while to read
    local now hash recorded kept=$jobs/image.sha256
    now=$(stat --dereference --format='%n %s %Y %Z %i' -- "$image" 2>/dev/null) || {
        say "image $image not found on host ${SLURMD_NODENAME:-$HOSTNAME}" >&2
        return 78
    }
    if [ "$(tail -n +2 "$kept" 2>/dev/null)" != "$now" ]; then
        hash=$(sha256sum -- "$image") || return
        hash=${hash#\\} # before a name that sha256sum had to escape
        printf '%s\n%s\n' "${hash%% *}" "$now" >"$jobs/.image-$id.tmp"
        mv -- "$jobs/.image-$id.tmp" "$kept"
    fi
    hash=$(head -n 1 "$kept")
    recorded=$(sed -n 's/^ *"sha256": "\([0-9a-f]*\)".*/\1/p' "$image.json" 2>/dev/null) || :
    if [ "${recorded:-$hash}" != "$hash" ]; then
        say "image $image has changed since it was built: its SHA-256 is $hash," \
            "$image.json records $recorded; build it again, or remove that record" >&2
        return 78
    fi
    echo "$hash"
}

# Each rank hands on what is its own and what steers its communication; nothing else of the host
# enters the image.
export APPTAINERENV_NCCL_DEBUG="$NCCL_DEBUG"
export APPTAINERENV_PYTHONPATH=$suite APPTAINERENV_PYTHONNOUSERSITE=1
LOCKSTEP_DROPPED= # names of what the site's lines set and no rank will see
for name in $(compgen -e); do
    case $name in
        SLURM_*|LOCKSTEP_*|NCCL_*|RCCL_*|TORCH_NCCL_*|GLOO_*|FI_*|OFI_NCCL_*|UCX_*|HSA_*|CUDA_VISIBLE_DEVICES|APPTAINERENV_*|SINGULARITYENV_*|PWD|OLDPWD|SHLVL|_) ;;
        *) [ -v "APPTAINERENV_$name" ] || [ "${had[$name]+=}${had[$name]-}" = "=${!name-}" ] ||
            LOCKSTEP_DROPPED+=" $name" ;;
    esac
done
export LOCKSTEP_DROPPED
# shellcheck disable=SC2016 # a rank expands it, not this shell
hand_on='for name in $(compgen -e); do
    case $name in
        SLURM_*|LOCKSTEP_*|NCCL_*|RCCL_*|TORCH_NCCL_*|GLOO_*|FI_*|OFI_NCCL_*|UCX_*|HSA_*|CUDA_VISIBLE_DEVICES) export "APPTAINERENV_$name=${!name}" ;;
    esac
done
need() { # need KEY PATH: this node has what the site file names
    ! stat -- "$2" >/dev/null 2>&1 || return 0
    echo "$1" 2>/dev/null >"$LOCKSTEP_MEND"
    [ "${SLURM_LOCALID:-0}" -ne 0 ] || echo "lockstep: error: $1 $2 not found on host $SLURMD_NODENAME" >&2
    exit 78
}
need container.image "$0"
while [[ $1 = need:* ]]; do
    name=${1#need:}
    need "${name%%=*}" "${name#*=}"
    shift
done
exec "$@"'

# The store where ranks meet is none of theirs: whichever rank dies, the others learn of it. It
# serves until its input ends, which this shell alone holds open.
serve() {
    rm -f -- "$jobs/.store-$id"
    # shellcheck disable=SC2034 # nothing is said to it
    coproc LOCKSTEP_SERVER {
        exec bash -c "$hand_on" "$image" need:container.binds=/scratch apptainer exec --cleanenv --no-eval --nv --bind=/results/ladder --bind=/scratch --no-home "$image" python3 -m lockstep.world.store \
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
mend=container.image
LOCKSTEP_IMAGE_SHA256=$(image_hash)
mend=
export LOCKSTEP_IMAGE_SHA256

# One task on each node, beside what runs there: it takes no CPU, memory or GPU from that.
on_nodes=(srun --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1
    --mem=0 --gres=none --mpi=none --export=ALL --kill-on-bad-exit=1)

start=(bash -c "$hand_on" "$image" need:container.binds=/scratch apptainer exec --cleanenv --no-eval --nv --bind=/results/ladder --bind=/scratch --no-home "$image")
options=(-m 'strong or weak' --size=node --global-batch=1024 --rounds=2 --warmup-rounds=2 --steps-per-round=3 --seed=0 --device=cuda --threads-per-rank=16 --label=campaign=ladder '--label=studies=strong,weak' --label=site=here --resume --stop-file="$stop")

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

measured=$results/profiles/nsys-$id
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
    # Around each rank: around srun it would see srun alone. The other cases are a step of their own.
    tool=(nsys profile '--trace=cuda,nvtx,osrt' --sample=none --force-overwrite=true
        --output="$folder/step-%q{SLURM_STEP_ID}-rank-%q{SLURM_PROCID}")
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

# A few steps of each case, apart from the measured launches.
launch w4-r0 4 0
launch w1-r0 1 0
launch w2-r0 2 0
launch w8-r0 8 0

[ -z "$stopping" ] || [ -n "$lost" ] || [ "$failed" -eq 0 ] || exit 75 # as pytest says that it was stopped
exit "$failed"
