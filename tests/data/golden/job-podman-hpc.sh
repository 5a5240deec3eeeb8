#!/bin/bash
#SBATCH --job-name=ladder-w8-r0
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
#SBATCH --output=/results/ladder/jobs/ladder-w8-r0-%j.out
#SBATCH --no-requeue
#SBATCH --exclusive
# Submitted again, this script measures only what its journals do not hold yet. Its functions,
# whose names begin with lockstep_, are in lib/job.sh, in the folder of this script.
set -euo pipefail

job_name=ladder-w8-r0
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
image=lockstep:1
in_image=(podman-hpc run --rm --interactive --network=host --ipc=host --pid=host --gpu '--env=SLURM_*' '--env=SLURMD_NODENAME*' '--env=LOCKSTEP_*' '--env=NCCL_*' '--env=RCCL_*' '--env=TORCH_NCCL_*' '--env=GLOO_*' '--env=FI_*' '--env=OFI_NCCL_*' '--env=UCX_*' '--env=HSA_*' '--env=CUDA_VISIBLE_DEVICES*' --env=PYTHONPATH=/opt/lockstep --env=PYTHONNOUSERSITE=1 --env=MKL_NUM_THREADS --env=OMP_NUM_THREADS --env=OPENBLAS_NUM_THREADS --env=NCCL_DEBUG --volume=/results/ladder:/results/ladder --workdir=/results/ladder --nccl)
needs=() # of each node, by the keys of the site file
# How names of variables begin that enter it.
handed_on=(SLURM_ SLURMD_NODENAME LOCKSTEP_ NCCL_ RCCL_ TORCH_NCCL_ GLOO_ FI_ OFI_NCCL_ UCX_ HSA_ CUDA_VISIBLE_DEVICES)
scratch= # nothing is staged
tests=("$suite/bench")
options=(-m 'strong or weak' --size=node --global-batch=1024 --seed=0 --device=cuda --threads-per-rank=16 --label=campaign=ladder '--label=studies=strong,weak' --label=site=here --resume)
measured=$results/launches
lockstep_shape_of() { # lockstep_shape_of WORLD_SIZE: what srun is told of nodes, ranks and GPUs
    case $1 in
        8) shape=(--nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --gpus-per-node=h100:4) ;;
    esac
}
lockstep_enter MKL_NUM_THREADS NCCL_DEBUG OMP_NUM_THREADS OPENBLAS_NUM_THREADS

# One world size; its other repeats are jobs of their own, unless the campaign has share_job.
lockstep_launch w8-r0 8 0
lockstep_end
