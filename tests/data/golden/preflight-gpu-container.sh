#!/bin/bash
#SBATCH --job-name=ladder-preflight
#SBATCH --partition=gpu
#SBATCH --account=project
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=h100:4
#SBATCH --mem=480G
#SBATCH --time=00:15:00
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
#SBATCH --output=/results/ladder/jobs/ladder-preflight-%j.out
#SBATCH --no-requeue
#SBATCH --exclusive
# Submitted again, this script measures only what its journals do not hold yet. Its functions,
# whose names begin with lockstep_, are in lib/job.sh, in the folder of this script.
set -euo pipefail

job_name=ladder-preflight
results=/results/ladder
suite=/opt/lockstep
id=$SLURM_JOB_ID
. "$results/jobs/lib/job.sh"
lockstep_begin

set +u # what a site loads is not written for it
mend=shell_before
ulimit -l unlimited
export MKL_NUM_THREADS=16
export NCCL_DEBUG=WARN
export OMP_NUM_THREADS=16
export OPENBLAS_NUM_THREADS=16
export LOCKSTEP_LAUNCHER=slurm PYTHONNOUSERSITE=1
set -u

num_nodes=2
num_ranks=8 # of the largest step
srun_options=(--cpu-bind=cores --mpi=none)
image=/images/lockstep.sif
handing=APPTAINERENV # its runtime hands on what is so called
in_image=(apptainer exec --cleanenv --no-eval --nv --bind=/results/ladder --bind=/scratch --no-home)
needs=(need:container.binds=/scratch) # of each node, by the keys of the site file
# How names of variables begin that enter it.
handed_on=(SLURM_ SLURMD_NODENAME LOCKSTEP_ NCCL_ RCCL_ TORCH_NCCL_ GLOO_ FI_ OFI_NCCL_ UCX_ HSA_ CUDA_VISIBLE_DEVICES)
scratch= # nothing is staged
tests=("$suite/bench")
options=(-m 'collective or weak' --size=smoke --benchmark-disable --threads-per-rank=16 --device=cuda)
lockstep_shape_of() { # lockstep_shape_of WORLD_SIZE: what srun is told of nodes, ranks and GPUs
    case $1 in
        8) shape=(--nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --gpus-per-node=h100:4) ;;
    esac
}
lockstep_enter MKL_NUM_THREADS NCCL_DEBUG OMP_NUM_THREADS OPENBLAS_NUM_THREADS

# Every node answers; then the ranks meet, exchange data and train a step.
lockstep_shape_of 8
lockstep_check "every node" "${on_nodes[@]}" hostname
lockstep_check "every rank" lockstep_step "$jobs/preflight-$id.txt" python3 -m pytest "${tests[@]}" "${options[@]}"
lockstep_end
