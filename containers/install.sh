#!/bin/sh
# Install the suite that lies in /opt/lockstep: the %post of every definition.
# usage: install.sh [COMMIT]   COMMIT is what the suite is at, where that is known
set -eu

cd /opt/lockstep
# A checkout's modes come with it, and any user is to read the suite.
chmod -R a+rX .
find . -name __pycache__ -prune -exec rm -r {} +
# There is no git in an image's suite; this file says what it is at.
[ -z "${1:-}" ] || echo "$1" >COMMIT

command -v pip3 >/dev/null || {
    apt-get update
    apt-get install --yes --no-install-recommends ca-certificates git python3 python3-pip
    rm -rf /var/lib/apt/lists/*
}
# Newer Debian and Ubuntu bases let pip into the system's Python only when told so.
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1

versions() {
    python3 -c 'import torch, torchvision as v; print(torch.__version__, v.__version__)'
}

# The base's torch and torchvision were built for its CUDA and NCCL: never reinstalled.
beside_the_base() {
    before=$(versions)
    # NGC's images pin what they ship by this file, and pip keeps to it here.
    [ ! -f /etc/pip/constraint.txt ] ||
        export PIP_CONSTRAINT="${PIP_CONSTRAINT:-/etc/pip/constraint.txt}"
    others=$(mktemp)
    python3 - >"$others" <<'END'
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
wanted = project["dependencies"] + project["optional-dependencies"]["bench"]
print(*(name for name in wanted if not name.startswith("torch")), sep="\n")
END
    python3 -m pip install --requirement "$others"
    rm "$others"
    python3 -m pip install --no-deps --editable .
    [ "$before" = "$(versions)" ] || {
        echo "the installation has replaced the base's torch and torchvision, which were $before" >&2
        exit 1
    }
}

# uv installs torch in seconds; compiled at once, for nothing can be cached in an image.
with_torch() {
    # A site's own certificates may be bound here; uv looks for them only where it is told.
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
    python3 -m pip install uv
    uv pip install --system --break-system-packages --no-cache --compile-bytecode \
        --constraint constraints.txt --editable '.[bench]'
}

# The suite stays where it is (editable), so that a checkout's own comes before it.
if python3 -c 'import importlib.util as u; raise SystemExit(u.find_spec("torch") is None)'; then
    beside_the_base
else
    with_torch
fi
python3 -m compileall -q .
