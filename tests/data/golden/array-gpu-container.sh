#!/bin/bash
#SBATCH --job-name=ladder-w2
#SBATCH --partition=gpu
#SBATCH --account=project
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=h100:2
#SBATCH --mem=480G
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
#SBATCH --output=/results/ladder/jobs/ladder-w2-%A_%a.out
#SBATCH --no-requeue
#SBATCH --exclusive
#SBATCH --array=0-3%2
# Submitted again, this script measures only what its journals do not hold yet. Its functions,
# whose names begin with lockstep_, are in lib/job.sh, in the folder of this script.
set -euo pipefail

job_name=ladder-w2
results=/results/ladder
suite=/opt/lockstep
id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
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

num_nodes=1
num_ranks=2 # of the largest step
srun_options=(--cpu-bind=cores --mpi=none)
image=/images/lockstep.sif
handing=APPTAINERENV # its runtime hands on what is so called
in_image=(apptainer exec --cleanenv --no-eval --nv --bind=/results/ladder --bind=/scratch --no-home)
needs=(need:container.binds=/scratch) # of each node, by the keys of the site file
# How names of variables begin that enter it.
handed_on=(SLURM_ SLURMD_NODENAME LOCKSTEP_ NCCL_ RCCL_ TORCH_NCCL_ GLOO_ FI_ OFI_NCCL_ UCX_ HSA_ CUDA_VISIBLE_DEVICES)
scratch= # nothing is staged
tests=("$suite/bench")
options=(-m 'strong or weak' --size=node --global-batch=1024 --seed=0 --device=cuda --threads-per-rank=16 --label=campaign=ladder '--label=studies=strong,weak' --label=site=here --resume)
measured=$results/launches
lockstep_shape_of() { # lockstep_shape_of WORLD_SIZE: what srun is told of nodes, ranks and GPUs
    case $1 in
        2) shape=(--nodes=1 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=16 --gpus-per-node=h100:2) ;;
    esac
}
lockstep_enter MKL_NUM_THREADS NCCL_DEBUG OMP_NUM_THREADS OPENBLAS_NUM_THREADS

# Each element of the array makes one launch.
launches=(
    'w2-r0-p1 2 0 1/2'
    'w2-r0-p2 2 0 2/2'
    'w2-r1-p2 2 1 2/2'
    'w2-r1-p1 2 1 1/2'
)
read -ra chosen <<<"${launches[SLURM_ARRAY_TASK_ID]}"
lockstep_launch "${chosen[@]}"
lockstep_end
