#!/bin/bash
#SBATCH --job-name=ladder-prepare
#SBATCH --partition=gpu
#SBATCH --account=project
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --mem=480G
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
#SBATCH --output=/results/ladder/jobs/ladder-prepare-%j.out
#SBATCH --no-requeue
#SBATCH --exclusive
# Submitted again, this script measures only what its journals do not hold yet. Its functions,
# whose names begin with lockstep_, are in lib/job.sh, in the folder of this script.
set -euo pipefail

job_name=ladder-prepare
results=/results/ladder
suite=/opt/lockstep
id=$SLURM_JOB_ID
. "$results/jobs/lib/job.sh"
lockstep_begin

set +u # what a site loads is not written for it
mend=shell_before
ulimit -l unlimited
export MKL_NUM_THREADS=64
export NCCL_DEBUG=WARN
export OMP_NUM_THREADS=64
export OPENBLAS_NUM_THREADS=64
export LOCKSTEP_LAUNCHER=slurm PYTHONNOUSERSITE=1
set -u

num_nodes=1
num_ranks=1 # of the largest step
srun_options=(--cpu-bind=cores --mpi=none)
image=/images/lockstep.sif
handing=APPTAINERENV # its runtime hands on what is so called
in_image=(apptainer exec --cleanenv --no-eval --bind=/results/ladder --bind=/usr/lib --bind=/scratch --no-home)
needs=(need:container.binds=/scratch) # of each node, by the keys of the site file
# How names of variables begin that enter it.
handed_on=(SLURM_ SLURMD_NODENAME LOCKSTEP_ NCCL_ RCCL_ TORCH_NCCL_ GLOO_ FI_ OFI_NCCL_ UCX_ HSA_ CUDA_VISIBLE_DEVICES)
scratch= # nothing is staged
options=()
lockstep_shape_of() { # lockstep_shape_of WORLD_SIZE: what srun is told of nodes, ranks and GPUs
    case $1 in
        1) shape=(--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=64) ;;
    esac
}
lockstep_enter MKL_NUM_THREADS NCCL_DEBUG OMP_NUM_THREADS OPENBLAS_NUM_THREADS

# The user's own command, by each task of the job, in the folder that it was sent from.
export LOCKSTEP_RESULTS=$results
lockstep_shape_of 1
lockstep_step /dev/stdout bash -c 'cd -- /usr/lib || exit
echo '"'"'it is'"'"' prepared' || failed=$?
lockstep_end
