# What the scripts of all jobs do: begin, enter, some launches, end. Each of them sources this file,
# and sets what differs. A name that begins with lockstep_ is no command or function that a site's
# own lines could mean. It needs bash 4.4, which RHEL 8 and SLES 15 have, or a later one.
# shellcheck shell=bash
# shellcheck disable=SC2154,SC2317 # scripts set variables and call functions, and so do traps

jobs=$results/jobs
stop=$jobs/stop-$id # once it is there, the ranks end in order
failed=0            # exit code: 1 once a launch is incomplete
stopping=           # why nothing more begins
lost=               # nodes that answer no more
running=            # process of the srun that runs
mend=               # key of the site file that is to be mended if what runs now fails
# Where a node or a rank leaves the key, or the variable, that names what it lacks.
export LOCKSTEP_MEND=$jobs/.mend-$id
driver=()           # what starts the ranks of a program in pytest's place
agent=()            # options of the torchrun that starts a node's ranks, where srun does not
handing=            # how names begin that the image's runtime hands on, where it goes by names
by_srun=            # whether that runtime's options are srun's
cache=              # folder on each node in which what is staged outlives the job
floor=              # least efficiency of a world size for a larger one to be begun
keeper=             # process that removes what the job leaves on its nodes
declare -A had=()   # what is exported before the site's own lines

lockstep_say() {
    TZ=UTC printf '%(%FT%TZ)T lockstep: %s\n' -1 "$*"
}

lockstep_fail() { # lockstep_fail WORDS: what cannot be gone on from
    lockstep_say "$@"
    exit 1
}

# Begin and end

lockstep_begin() {
    # What an outer job asked for is not for ours; what ours needs, each srun is told.
    unset PYTHONPATH "${!SLURM_CPU_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_CPUS_PER_GPU \
        SLURM_GPUS SLURM_CLUSTERS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_PER_TASK \
        SLURM_GPU_BIND SLURM_DISTRIBUTION
    rm -f -- "$stop" "$LOCKSTEP_MEND" "$jobs/exit-$id.json" # of a job that was requeued: it runs again
    trap lockstep_warned USR1
    trap 'stopping=ended; exit 143' TERM
    trap lockstep_finish EXIT
    local one
    for one in $(compgen -e); do had[$one]=${!one-}; done
}

lockstep_unless_done() { # lockstep_unless_done JOB: end where the job before this one left nothing to do
    local record
    for record in "$jobs"/exit-*.json; do
        # Not a record of an earlier submission, which made the script anew.
        if [ "$record" -nt "$jobs/$1.sh" ] &&
            grep --quiet --fixed-strings "\"job\": \"$1\", \"exit_code\": 0," -- "$record"; then
            lockstep_say "$1 measured everything, so this job has nothing to do"
            exit 0
        fi
    done
}

lockstep_warned() { # Slurm's signal before the limit: what runs ends in order, nothing more begins
    stopping='the job is near its time limit'
    : >"$stop"
}

lockstep_end() {
    # 75 as pytest says that it was stopped
    [ -z "$stopping" ] || [ -n "$lost" ] || [ "$failed" -eq 0 ] || exit 75
    exit "$failed"
}

lockstep_finish() { # whatever ended the job: $? says how
    local code=$? rc
    trap - EXIT
    trap '' TERM USR1
    set +e
    [ -z "$running" ] || kill "$running" 2>/dev/null
    [ "$code" -eq 0 ] || [ -n "$mend" ] || mend=$(head -n 1 -- "$LOCKSTEP_MEND" 2>/dev/null | LC_ALL=C tr -cd '[:alnum:]._')
    rm -f -- "$LOCKSTEP_MEND" "$jobs/.store-$id" "$jobs/.store-$id.txt" "$jobs/.staged-$id"
    # What may be cut has not ended well.
    if [ -n "$keeper" ] || declare -F lockstep_after >/dev/null; then
        lockstep_record_end "$((code ? code : 1))"
    fi
    [ -z "$keeper" ] || lockstep_leave_nodes || [ "$code" -ne 0 ] || code=1
    if declare -F lockstep_after >/dev/null; then
        lockstep_after # not in a list: || would take its set -e
        rc=$?
        [ "$rc" -eq 0 ] || [ "$code" -ne 0 ] || code=1
    fi
    lockstep_record_end "$code"
    exit "$code"
}

lockstep_record_end() { # lockstep_record_end CODE: as far as it is known, for Slurm may cut what follows
    local ended stopped=false
    TZ=UTC printf -v ended '%(%FT%TZ)T' -1
    [ -z "$stopping" ] || [ -n "$lost" ] || stopped=true
    printf '{"job_id": "%s", "job": "%s", "exit_code": %d, "stopped": %s, "lost": "%s", "mend": "%s", "ended": "%s"}\n' \
        "$id" "$job_name" "$1" "$stopped" "$lost" "$mend" "$ended" >"$jobs/.exit-$id.tmp" &&
        mv -- "$jobs/.exit-$id.tmp" "$jobs/exit-$id.json"
}

lockstep_await() { # lockstep_await PROCESS: its exit code, also if the warning ends the wait
    local rc=0
    wait "$1" || rc=$?
    while [ "$rc" -gt 128 ] && kill -0 "$1" 2>/dev/null; do
        rc=0
        wait "$1" || rc=$?
    done
    return "$rc"
}

# The environment of ranks

lockstep_enter() { # lockstep_enter NAME...: let ranks start, with the site's variables of these names
    mend=
    cd "$results" || exit
    # torchrun meets others of its kind, be there none.
    meets=
    [ "$num_ranks" -eq 1 ] && [ "$LOCKSTEP_LAUNCHER" = slurm ] || meets=true
    if [ -n "$meets" ]; then hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST"); fi
    # One task on each node, beside what runs there: it takes no CPU, memory or GPU from that.
    on_nodes=(srun --overlap --nodes="$num_nodes" --ntasks="$num_nodes" --ntasks-per-node=1 --cpus-per-task=1
        --mem=0 --gres=none --mpi=none --export=ALL --kill-on-bad-exit=1)
    start=() # what each rank's command begins with
    inside=() # what srun is told of the image, where it starts that
    here=() # what a command of this shell's own begins with
    if [ -n "$image" ]; then lockstep_enter_image "$@"; fi
    if [ -n "$meets" ] && [ "${#driver[@]}" -eq 0 ]; then lockstep_serve; fi # it starts while the image is read and staged
    if [ -n "$image" ]; then
        mend=container.image
        LOCKSTEP_IMAGE_SHA256=$(lockstep_image_hash)
        mend=
        export LOCKSTEP_IMAGE_SHA256
    fi
    if [ -n "$scratch" ]; then lockstep_stage; fi
    options+=(--stop-file="$stop" ${scratch:+"--data-root=$scratch/data"})
}

# Each rank hands on what is its own and what steers its communication; nothing else of the host
# enters the image.
lockstep_enter_image() { # lockstep_enter_image NAME...
    local one handed own='^(APPTAINERENV|SINGULARITYENV)_|^(PWD|OLDPWD|SHLVL|_)$'
    handed="^($(IFS='|' && echo "${handed_on[*]}"))"
    if [ -n "$handing" ]; then
        for one; do export "${handing}_$one=${!one}"; done
        export "${handing}_PYTHONPATH=$suite" "${handing}_PYTHONNOUSERSITE=1"
    else
        export LOCKSTEP_IMAGE=$image # it says so itself otherwise
    fi
    LOCKSTEP_DROPPED= # names of what the site's lines set and no rank will see
    for one in $(compgen -e); do
        [ -z "$by_srun" ] || break # all of them enter
        [[ $one =~ $handed|$own || " $* PYTHONPATH PYTHONNOUSERSITE " == *" $one "* ]] || [ "${had[$one]+=}${had[$one]-}" = "=${!one-}" ] ||
            LOCKSTEP_DROPPED+=" $one"
    done
    export LOCKSTEP_DROPPED
    # shellcheck disable=SC2016 # a rank expands it, not this shell
    hand_on="handed='$handed' handing=$handing"'
for one in $(compgen -e); do
    if [ -n "$handing" ] && [[ $one =~ $handed ]]; then export "${handing}_$one=${!one}"; fi
done
need() { # need KEY PATH: this node has what the site file names
    ! stat -- "$2" >/dev/null 2>&1 || return 0
    echo "$1" 2>/dev/null >"$LOCKSTEP_MEND"
    [ "${SLURM_LOCALID:-0}" -ne 0 ] || echo "lockstep: error: $1 $2 was not found on host $SLURMD_NODENAME" >&2
    exit 78
}
[[ $0 != /* ]] || need container.image "$0" # else a name
while [[ $1 = need:* ]]; do
    one=${1#need:}
    need "${one%%=*}" "${one#*=}"
    shift
done
exec "$@"'
    lockstep_starts
}

lockstep_starts() { # lockstep_starts [OPTION...]: set what starts a command in the image; OPTIONs are Apptainer's
    if [ -n "$by_srun" ]; then
        inside=("--container-image=$image" "${in_image[@]}")
        here=(srun --overlap --relative=0 --nodes=1 --ntasks=1 --cpus-per-task=1 --mem=0 --gres=none --mpi=none
            --export=ALL "${inside[@]}")
        return
    fi
    [ -n "$handing" ] || set --
    start=(bash -c "$hand_on" "$image" "${needs[@]}" "${in_image[@]}" "$@" "$image")
    here=("${start[@]}")
}

lockstep_recorded() { # print a key of the record that `lockstep image build` left of the image
    sed -n "s/^ *\"$1\": \"\([^\"]*\)\".*/\1/p" "$image.json" 2>/dev/null || :
}

lockstep_image_hash() { # print the image's SHA-256; kept, for a large one takes a while to read
    local now hash recorded written kept=$jobs/image.sha256
    if [[ $image != /* ]]; then # podman-image-inspect(1): the digest of what it is made of
        "${in_image[0]}" image inspect --format='{{.Id}}' "$image"
        return
    fi
    now=$(stat --dereference --format='%n %s %Y %Z %i' -- "$image" 2>/dev/null) || {
        lockstep_say "image $image was not found on host ${SLURMD_NODENAME:-$HOSTNAME}" >&2
        return 78
    }
    recorded=$(lockstep_recorded sha256)
    written=$(lockstep_recorded file_stat)
    if [ -n "$written" ] && [ "$written" = "$(stat -L --format='%s %Y %i' -- "$image")" ]; then
        echo "$recorded" # it was not written since it was built
        return
    fi
    if [ "$(tail -n +2 "$kept" 2>/dev/null)" != "$now" ]; then
        hash=$(sha256sum -- "$image") || return
        hash=${hash#\\} # before a name that sha256sum had to escape
        printf '%s\n%s\n' "${hash%% *}" "$now" >"$jobs/.image-$id.tmp"
        mv -- "$jobs/.image-$id.tmp" "$kept"
    fi
    hash=$(head -n 1 "$kept")
    if [ "${recorded:-$hash}" != "$hash" ]; then
        lockstep_say "image $image has changed since it was built: its SHA-256 is $hash," \
            "but $image.json records $recorded; build the image again, or remove that record" >&2
        return 78
    fi
    echo "$hash"
}

# The store where ranks meet is none of theirs: whichever rank dies, the others learn of it. It
# serves until its input ends, which this shell alone holds open.
lockstep_serve() {
    rm -f -- "$jobs/.store-$id"
    # shellcheck disable=SC2034 # nothing is said to it
    coproc LOCKSTEP_SERVER {
        exec "${here[@]}" python3 -m lockstep.ranks.store --host "${hosts%%$'\n'*}" \
            --address-file "$jobs/.store-$id" >>"$jobs/.store-$id.txt" 2>&1
    }
}

lockstep_meet() { # let the ranks of the next step meet where those of no other step do
    local give_up=$((SECONDS + 600))
    [ -n "${LOCKSTEP_SERVER_PID:-}" ] || lockstep_serve
    until [ -s "$jobs/.store-$id" ]; do
        if [ -z "${LOCKSTEP_SERVER_PID:-}" ] || [ "$SECONDS" -ge "$give_up" ]; then
            lockstep_say "the store (TCPStore) of the ranks did not start on ${hosts%%$'\n'*}; its output:"
            cat -- "$jobs/.store-$id.txt"
            exit 1
        fi
        sleep 0.2
    done
    LOCKSTEP_STORE=$(<"$jobs/.store-$id")
    LOCKSTEP_STORE_PREFIX=$(</proc/sys/kernel/random/uuid)
    export LOCKSTEP_STORE LOCKSTEP_STORE_PREFIX
}

# The nodes' own disks. Every node has a folder of this job's own. Whatever ends the job, $keeper's
# task on each node copies what ranks left in out/ to the results and removes the folder: once Slurm
# ends a job no new step can begin, but those that run get a signal first.

# shellcheck disable=SC2016 # a node's task expands it, not this shell
leave='scratch=$1 to=$2/out-$3/$SLURMD_NODENAME mine=$1.$SLURMD_NODENAME
mv --no-target-directory -- "$scratch" "$mine" 2>/dev/null # again: no other may use the name
[ ! -O "$mine" ] || { exec 9<"$mine" && flock 9; } # one copies; its lock ends with it
[ -e "$mine" ] || { [ ! -e "$scratch" ]; exit; } # it did, or moved it back: a failure
if [ -n "$(ls -A -- "$mine/out" 2>/dev/null)" ]; then
    mkdir -p -- "$to" && cp -r -- "$mine/out/." "$to" || { mv -- "$mine" "$scratch"; exit 1; }
fi
find "$mine" -type d -exec chmod u+w -- {} + # else read-only data could not be removed
rm -rf -- "$mine"'
# shellcheck disable=SC2016
stay='go() { trap "" TERM USR2; kill "$!" 2>/dev/null; bash -c "$4" leave "$1" "$2" "$3"; exit; }
trap "go \"\$@\"" TERM USR2
sleep infinity & # a signal ends the wait for it; or Slurm ends it first, by the same signal
wait
go "$@"'
# shellcheck disable=SC2016
stage_in_script='set -euo pipefail
scratch=$1 cache=$2 image=$3 sha256=$4
shift 4
own() { # own FOLDER: make it, unless it is there and is another'"'"'s
    (umask 077 && mkdir -p -- "$1")
    [ -O "$1" ] && [ ! -L "$1" ] || { echo "$SLURMD_NODENAME: $1 belongs to another user" >&2; exit 1; }
}
own "$scratch"
exec 9<"$scratch"
flock 9 # nodes that share the folder copy once
[ ! -e "$scratch/staged" ] || exit 0
mkdir -p -- "$scratch/data" "$scratch/out"
remove() { # remove PATH: a read-only folder, too
    find "$1" -type d -exec chmod u+w -- {} + 2>/dev/null || :
    rm -rf -- "$1"
}
copy() { # copy FROM TO: an image must come out as it is known; what does not come out whole goes
    local copied rc=0
    cp -rH -- "$1" "$2" || rc=$?
    if [ "$rc" -eq 0 ] && [ -n "$image" ] && [ "$1" = "$image" ]; then
        copied=$(sha256sum <"$2")
        if [ "${copied%% *}" != "$sha256" ]; then
            echo "$SLURMD_NODENAME: the copy of $image has SHA-256 ${copied%% *}, not $sha256" >&2
            rc=1
        fi
    fi
    [ "$rc" -eq 0 ] || remove "$2"
    return "$rc"
}
files() { # files FOLDER: print what tells whether it is still whole, whatever a site has cleaned up
    find "$1" -type f -printf "%P %s\n" | LC_ALL=C sort | b2sum
}
if [ -n "$cache" ]; then
    own "$cache"
    exec 8<"$cache"
    flock 8 # jobs of a node copy one after another
    how=hit
    for ((one = 2; one <= $#; one += 3)); do # its keys: what this job asks for stays
        touch --no-create -- "$cache/${!one}" "$cache/${!one}.whole"
    done
    find "$cache" -mindepth 1 -maxdepth 1 -mtime +30 -print0 |
        while IFS= read -r -d "" old; do remove "$old"; done || : # before copies need the place
fi
while [ "$#" -gt 0 ]; do # FROM, its key in the cache, TO
    if [ -n "$cache" ]; then
        kept=$cache/$2
        if [ "$(files "$kept" 2>/dev/null)" != "$(cat -- "$kept.whole" 2>/dev/null)" ]; then
            how=miss
            remove "$kept.new" # of a job that was cut
            copy "$1" "$kept.new"
            # Another job may be reading it; the purge takes it later.
            [ ! -e "$kept" ] || mv -- "$kept" "$kept.old-$(date +%s%N)"
            mv -- "$kept.new" "$kept"
            files "$kept" >"$kept.whole"
        fi
        ln -s -- "$kept" "$scratch/$3"
    else
        copy "$1" "$scratch/$3"
    fi
    shift 3
done
if [ -n "$cache" ]; then
    echo "$SLURMD_NODENAME $how"
fi
touch -- "$scratch/staged"'

lockstep_stage() {
    local began path key copied='' wanted=()
    export LOCKSTEP_SCRATCH=$scratch
    stage_in_s=null cache_hits=null cache_misses=null
    began=$(date +%s%N)
    if [ -n "$stage_image" ]; then
        copied=$image
        wanted=("$image" "image-$LOCKSTEP_IMAGE_SHA256" image.sif)
    fi
    for path in "${stage_in[@]}"; do
        key=$(lockstep_key_of "$path") || lockstep_fail "$path cannot be read, so it was not copied to scratch"
        wanted+=("$path" "$key" "data/$(basename -- "$path")")
    done
    "${on_nodes[@]}" bash -c "$stay" stay "$scratch" "$jobs" "$id" "$leave" </dev/null &
    keeper=$!
    "${on_nodes[@]}" bash -c "$stage_in_script" stage "$scratch" "$cache" "$copied" \
        "${LOCKSTEP_IMAGE_SHA256:-}" "${wanted[@]}" </dev/null >"$jobs/.staged-$id" &
    running=$!
    lockstep_await "$running" || lockstep_fail "the job's files were not copied to scratch; see the lines above"
    running=
    stage_in_s=$(lockstep_seconds_since "$began")
    if [ -n "$cache" ]; then
        cache_hits=$(lockstep_cached hit)
        cache_misses=$(lockstep_cached miss)
    fi
    [ -z "$copied" ] || image=$scratch/image.sif
    [ -z "$image" ] || lockstep_starts --bind="$scratch" ${cache:+"--bind=$cache:$cache:ro"}
}

lockstep_key_of() { # lockstep_key_of PATH: print what it has in the cache, until anything below it changes
    [ -n "$cache" ] || return 0
    find -L "$1" -printf '%p %y %s %T@\n' | LC_ALL=C sort | b2sum --length=128 | cut --characters=-32
}

lockstep_cached() { # lockstep_cached hit|miss: say on which nodes it was that, and print how many they are
    local nodes
    nodes=$(sed -n "s/ $1\$//p" -- "$jobs/.staged-$id" | sort)
    [ -z "$nodes" ] || lockstep_say "staged: cache $1 on $(paste -sd, <<<"$nodes")" >&2
    grep --count . <<<"$nodes" || :
}

lockstep_leave_nodes() { # called once, at the end
    local began tries=0 rc=0
    began=$(date +%s%N)
    # Again and again: a signal that finds no task yet is lost. A node that is lost keeps srun.
    while kill -USR2 "$keeper" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 150 ] || kill -KILL "$keeper" 2>/dev/null
        sleep 0.2
    done
    lockstep_await "$keeper" ||
        "${on_nodes[@]}" bash -c "$leave" leave "$scratch" "$jobs" "$id" </dev/null || rc=$?
    [ "$rc" -eq 0 ] || lockstep_say "results were not copied from $scratch (exit code $rc); the folder may still exist on the nodes"
    {
        flock -w 10 3 # where the file system can
        printf '{"job_id": "%s", "stage_in_s": %s, "stage_out_s": %s, "cache_hits": %s, "cache_misses": %s}\n' \
            "$id" "$stage_in_s" "$(lockstep_seconds_since "$began")" "$cache_hits" "$cache_misses" >&3
    } 3>>"$jobs/staging.jsonl"
    return "$rc"
}

lockstep_seconds_since() { # lockstep_seconds_since NANOSECONDS
    local ns=$(($(date +%s%N) - $1))
    printf '%d.%09d' $((ns / 1000000000)) $((ns % 1000000000))
}

# Launches

lockstep_launch() { # lockstep_launch NAME WORLD_SIZE REPEAT [PART]: the next one is made in any case
    local name=$1 folder=$measured/$1 rc num_lines num_bytes began measure follows=(again)
    local journal=$folder/journal.jsonl log=$folder/log.txt
    [ -n "$stopping" ] || [ ! -e "$stop" ] || stopping='a stop file exists'
    if [ -n "$stopping" ]; then
        lockstep_say "$name: not started, because $stopping"
        failed=1
        return
    fi
    lockstep_above_floor "$2" || return 0
    mkdir -p -- "$folder"
    lockstep_shape_of "$2"
    lockstep_profiled "$folder"
    measure=("${tool[@]}" python3 -m pytest "${tests[@]}")
    [ "${#driver[@]}" -eq 0 ] || measure=("${driver[@]}" --world-size="$2")
    measure+=("${options[@]}" --label=launch="$name" --label=repeat="$3" ${4:+"--part=$4"})
    if [ "${profiler:-}" = torch ]; then
        lockstep_trace "$folder" "${measure[@]}"
        return
    fi
    measure+=(--journal="$journal")
    # However srun's step ends, another session follows where cases are left that it may measure.
    while [ "${follows[0]}" = again ]; do
        rc=0
        num_lines=$(lockstep_amount -l "$journal")
        num_bytes=$(lockstep_amount -c "$log")
        # By the file system's clock: what ranks write on other hosts is compared with it.
        touch -- "$log"
        began=$(date -r "$log" +%s)
        lockstep_step "$log" "${measure[@]}" "${follows[@]:2}" || rc=$?
        mapfile -t follows < <(lockstep_ask_next "$rc" "$folder" --num-lines="$num_lines" \
            --num-log-bytes="$num_bytes" --began="$began" --stop-file="$stop")
        lockstep_say "$name: ${follows[1]-}"
        lockstep_shorten "$log"
        case ${follows[0]} in
            done) return ;;
            stopped) stopping=${stopping:-'a stop file exists'} ;;
            *) lockstep_nodes_answer ;;
        esac
        [ -z "$stopping" ] || break
    done
    failed=1
}

lockstep_trace() { # lockstep_trace FOLDER COMMAND...: it keeps no journal, so that no session follows
    local rc=0
    lockstep_step "$1/log.txt" "${@:2}" --torch-trace="$1" || rc=$?
    lockstep_say "${1##*/}: srun ended with exit code $rc; the traces are in $1"
    [ "$rc" -eq 0 ] || failed=1
}

lockstep_above_floor() { # lockstep_above_floor WORLD_SIZE: no smaller size has missed until_efficiency
    local said rc=0
    [ -n "$floor" ] || return 0
    said=$("${here[@]}" python3 -m lockstep.campaign.floor "$measured" "$1" "$floor" </dev/null) || rc=$?
    [ "$rc" -eq 3 ] || return 0
    lockstep_say "world size $1: not started, because ${said##*$'\n'}"
    return 1
}

lockstep_ask_next() { # lockstep_ask_next EXIT_CODE ARGUMENT...: print what follows a session, line by line
    local answer rc mark='lockstep-next: '
    for _ in 1 2; do # a busy file system may fail it once
        rc=0
        answer=$("${here[@]}" python3 -m lockstep.campaign.next "${@:2}" --exit-code="$1" </dev/null) || rc=$?
        if [[ $answer = *"$mark"* ]]; then
            echo "${answer#*"$mark"}" # the image may print lines of its own before
            return
        fi
        [ "$rc" -ne 78 ] || break # the node lacks what the site file names, and has said so
    done
    printf 'unknown\nsrun ended with %s; Lockstep cannot tell how to continue\n' "$1"
}

lockstep_step() { # lockstep_step LOG COMMAND...: one srun over the ranks of $shape
    local log=$1 rc=0 step=(srun "${shape[@]}" --relative=0 "${srun_options[@]}" "${inside[@]}"
        --export=ALL --kill-on-bad-exit=1)
    shift
    if [ "${#driver[@]}" -gt 0 ]; then # it starts the ranks of each run
        set -- "$@" "${step[@]/#/--under=}" "${start[@]/#/--inside=}"
    else
        [ -z "$meets" ] || lockstep_meet
        if [ "${#agent[@]}" -gt 0 ]; then # its nodes meet where the ranks do, so that no port is guessed
            set -- python3 -m torch.distributed.run "${agent[@]}" --rdzv-id="$LOCKSTEP_STORE_PREFIX" \
                --rdzv-backend=c10d --rdzv-endpoint="$LOCKSTEP_STORE" --rdzv-conf=is_host=0 --no-python "$@"
        fi
        set -- "${step[@]}" "${start[@]}" "$@"
    fi
    "$@" </dev/null >>"$log" 2>&1 &
    running=$!
    lockstep_await "$running" || rc=$?
    running=
    return "$rc"
}

lockstep_nodes_answer() { # after a failure: a node that is lost would fail every launch that follows
    local said
    # The only one runs this script.
    [ -z "$stopping" ] && [ "$num_nodes" -gt 1 ] || return 0
    said=$(timeout 60 "${on_nodes[@]}" true 2>&1 </dev/null) && return
    # Only one that srun names: a node may as well be slow to end the step before.
    lost=$(sed -n 's/.* on \(node \)\?\([A-Za-z0-9._-]*\).*/\2/p' <<<"$said" |
        grep --fixed-strings --line-regexp -- "$hosts" | sort --unique | paste -sd, -) || :
    if [ -z "$lost" ]; then
        lockstep_say "not all nodes answer: ${said:-no answer within 60 s}"
        return
    fi
    stopping="$lost no longer answers"
}

lockstep_profiled() { # lockstep_profiled FOLDER: set what each rank runs under; around srun it would see no rank
    # The other cases after one that failed are a step of their own, and write beside it.
    local output="$1/step-%q{SLURM_STEP_ID}-rank-%q{SLURM_PROCID}"
    [ "$LOCKSTEP_LAUNCHER" = slurm ] || output=${output/SLURM_PROCID/RANK}
    case ${profiler:-} in
        nsys)
            tool=(nsys profile '--trace=cuda,nvtx,osrt' --sample=none --force-overwrite=true
                --output="$output") ;;
        ncu) # all sections, which also count FLOP and bytes of memory
            tool=(ncu --target-processes=all --set=full "${ncu_options[@]}" --force-overwrite
                --export="$output") ;;
        perf) # cannot name files by rank itself
            # shellcheck disable=SC2016  # each rank expands it
            tool=(bash -c 'exec perf record -g --output="$0/step-$SLURM_STEP_ID-rank-${RANK:-$SLURM_PROCID}.data" "$@"'
                "$1" --) ;;
        *) tool=() ;;
    esac
}

lockstep_amount() { # lockstep_amount -l|-c FILE: print how many lines or bytes it has
    if [ -e "$2" ]; then wc "$1" <"$2"; else echo 0; fi
}

lockstep_shorten() { # lockstep_shorten LOG: of one that a rank has flooded keep the beginning and the end
    local bytes
    bytes=$(wc -c <"$1")
    [ "$bytes" -gt 67108864 ] || return 0
    {
        head -c 1048576 -- "$1"
        printf '\nlockstep: this log had %d bytes; only the first and last 1048576 are kept\n' "$bytes"
        tail -c 1048576 -- "$1"
    } >"$1.tmp"
    mv -- "$1.tmp" "$1"
}

# What other jobs do

lockstep_check() { # lockstep_check WHAT COMMAND...: the job fails with the first one that does
    local what=$1 rc=0
    shift
    "$@" || rc=$?
    lockstep_say "the check of $what ended with exit code $rc"
    [ "$rc" -eq 0 ] || exit 1
}

# Accounting is asked outside the image, where there is none of Slurm's commands.
lockstep_ask_accounting() { # lockstep_ask_accounting SACCT...: keep what it says of the folder's jobs
    local sent patience unfinished=
    sent=$({
        sed -n 's/.*"id": "\([0-9]*\)".*/\1/p' "$jobs/submitted.jsonl" 2>/dev/null || :
        # Jobs sent by hand are known by their outputs, NAME-ID.out and NAME-ID_K.out.
        printf '%s\n' "$jobs"/*.out | sed -n 's/.*-\([0-9][0-9]*\)\(_[0-9]*\)*[.]out$/\1/p'
    } | sort --numeric-sort --unique | paste -sd, -) || sent=
    # Of a job that has just ended, Slurm's accounting hears a little later.
    for patience in 0 1 2 4 8 15; do
        sleep "$patience"
        if [ -z "$sent" ] || ! "$@" --jobs="$sent" >"$jobs/.sacct-$id.tmp"; then
            lockstep_say "sacct does not answer, so the jobs' accounting stays unknown"
            return
        fi
        mv -- "$jobs/.sacct-$id.tmp" "$jobs/sacct.txt"
        unfinished=$(awk -F'|' -v own="$id" '
            { sub(/[.].*/, "", $1) }
            $1 != own && $3 ~ /^(RUNNING|COMPLETING|PENDING)/ { print $1 }' "$jobs/sacct.txt" |
            sort --unique | paste -sd, -)
        [ -n "$unfinished" ] || return 0
    done
    lockstep_say "accounting does not show the end of jobs $unfinished yet; run lockstep status --collect later"
}

lockstep_need_python() { # outside an image python3 may be a site's own
    if [ -z "$image" ] && ! python3 -c 'import click, jinja2, pydantic'; then
        lockstep_say "python3 lacks packages that lockstep needs; run lockstep status --collect on a login node"
        exit 0 # what only this job could keep, it has kept
    fi
}
