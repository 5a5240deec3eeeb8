# shellcheck shell=bash
# What the testbed's commands share: where its state is, how it speaks, how its daemons run.
# shellcheck disable=SC2034 # the commands use the names
set -euo pipefail

TESTBED=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CHECKOUT=$(cd "$TESTBED/../.." && pwd)
STATE=${LOCKSTEP_TESTBED:-/var/tmp/lockstep-testbed}
# Handed on to every daemon, whose environment then says whose it is.
export LOCKSTEP_TESTBED=$STATE
export SLURM_CONF=$STATE/etc/slurm.conf
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

alone() { # hold the testbed until this command ends
    mkdir -p "$STATE"
    exec 9>"$STATE/lock"
    flock --timeout 600 9 || fail "another command has held $STATE/lock for 600 s; wait for it"
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

is_ours() { # is_ours PID: whether the process runs and this testbed started it
    tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | grep -qxF "LOCKSTEP_TESTBED=$STATE"
}

pid_of() { # pid_of NAME: print the daemon's pid; fail if it does not run
    local pid
    pid=$(cat "$STATE/run/$1.pid" 2>/dev/null) && [ -n "$pid" ] && is_ours "$pid" && echo "$pid"
}
