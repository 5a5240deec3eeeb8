#!/bin/bash
# sort.sh RANKS NUMBERS: sort a list in equal parts, one process for each.
set -euo pipefail
ranks=$1 numbers=$2
for ((rank = 0; rank < ranks; rank++)); do
    seq 1 "$((numbers / ranks))" | shuf --random-source=<(yes "$rank") | LC_ALL=C sort --parallel=1 -n >/dev/null &
done
wait
echo "sorted $numbers numbers in $ranks parts"
