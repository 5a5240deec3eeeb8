#!/bin/bash
#SBATCH --job-name=ladder-ncu
#SBATCH --partition=gpu
#SBATCH --account=project
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=h100:1
#SBATCH --mem=480G
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
#SBATCH --output=/results/ladder/jobs/ladder-ncu-%j.out
#SBATCH --no-requeue
#SBATCH --exclusive
# Submitted again, this script measures only what its journals do not hold yet. Its functions,
# whose names begin with lockstep_, are in lib/job.sh, in the folder of this script.
set -euo pipefail

job_name=ladder-ncu
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

num_nodes=1
num_ranks=1 # of the largest step
srun_options=(--cpu-bind=cores --mpi=none)
image=/images/lockstep.sif
handing=APPTAINERENV # its runtime hands on what is so called
in_image=(apptainer exec --cleanenv --no-eval --nv --bind=/results/ladder --bind=/scratch --no-home)
needs=(need:container.binds=/scratch) # of each node, by the keys of the site file
# How names of variables begin that enter it.
handed_on=(SLURM_ SLURMD_NODENAME LOCKSTEP_ NCCL_ RCCL_ TORCH_NCCL_ GLOO_ FI_ OFI_NCCL_ UCX_ HSA_ CUDA_VISIBLE_DEVICES)
scratch= # nothing is staged
tests=("$suite/bench")
options=(-m 'strong or weak' --size=node --global-batch=1024 --rounds=2 --warmup-rounds=2 --steps-per-round=3 --seed=0 --device=cuda --threads-per-rank=16 --label=campaign=ladder '--label=studies=strong,weak' --label=site=here --resume)
measured=$results/profiles/ncu-$id
profiler=ncu
ncu_options=(--launch-skip=200 --launch-count=20)
lockstep_shape_of() { # lockstep_shape_of WORLD_SIZE: what srun is told of nodes, ranks and GPUs
    case $1 in
        1) shape=(--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=16 --gpus-per-node=h100:1) ;;
    esac
}
lockstep_enter MKL_NUM_THREADS NCCL_DEBUG OMP_NUM_THREADS OPENBLAS_NUM_THREADS

# A few steps of each case, apart from the measured launches.
lockstep_launch w1-r0 1 0
lockstep_end
