# shellcheck shell=bash
# What the testbed's commands share: where things are, how they speak, whose a process is.
# shellcheck disable=SC2034 # the commands use the names
set -euo pipefail
umask 022
unset SLURM_CONF

TESTBED=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CHECKOUT=$(cd "$TESTBED/../.." && pwd)
STATE=${LOCKSTEP_TESTBED:-/var/tmp/lockstep-testbed}
# A machine has one testbed, whichever checkout and state it comes from: its pid files and sockets
# are here, so that the next one finds its daemons even where the state has been removed.
RUN=/run/lockstep-testbed
ETC=/etc/slurm
TESTBED_USER=lockstep
NODES=(node1 node2 node3 node4)
DAEMONS=(munged mariadbd slurmdbd slurmctld "${NODES[@]}")

say() {
    printf 'testbed: %s\n' "$*"
}

fail() {
    printf 'testbed: Error: %s\n' "$*" >&2
    exit 3
}

as_root() { # as_root "$0" "$@": go on as root
    [ "$(id -u)" -eq 0 ] || exec sudo --preserve-env "$@"
}

alone() { # alone "$0" "$@": go on as root and as the one command that changes the testbed
    as_root "$@"
    [ -z "${LOCKSTEP_TESTBED_ALONE:-}" ] || return 0
    mkdir -p "$RUN" "$STATE"
    LOCKSTEP_TESTBED_ALONE=yes \
        flock --close --timeout 600 --conflict-exit-code 75 "$RUN/lock" "$@" && exit
    local code=$?
    [ "$code" -ne 75 ] || fail "another command has held $RUN/lock for 600 s; wait for it"
    exit "$code"
}

quietly() { # quietly NAME COMMAND...: keep what the command says, and show it if it fails
    local log=$STATE/log/$1.out
    shift
    mkdir -p "$STATE/log"
    "$@" >"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        fail "'$*' failed; all it said is in $log"
    }
}

wait_for() { # wait_for SECONDS COMMAND...: repeat the command until it succeeds
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}

is_ours() { # is_ours PID: whether the process runs and a testbed started it
    grep -qzx LOCKSTEP_TESTBED_DAEMON=yes "/proc/$1/environ" 2>/dev/null
}

pid_of() { # pid_of NAME: print the daemon's pid; fail if it does not run
    local pid
    pid=$(cat "$RUN/$1.pid" 2>/dev/null) && [ -n "$pid" ] && is_ours "$pid" && echo "$pid"
}

start() { # start NAME COMMAND...: run a daemon in the foreground of a session of its own
    local name=$1
    shift
    cd "$RUN"
    LOCKSTEP_TESTBED_DAEMON=yes setsid "$@" </dev/null >"$STATE/log/$name.out" 2>&1 &
    echo $! >"$RUN/$name.pid"
}

is_own_configuration() { # whether this machine has no Slurm but the testbed
    [ ! -e "$ETC/slurm.conf" ] || grep -qx ClusterName=testbed "$ETC/slurm.conf"
}
