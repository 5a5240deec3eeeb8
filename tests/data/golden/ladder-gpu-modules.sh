#!/bin/bash
#SBATCH --job-name=ladder
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
#SBATCH --output=/results/ladder/jobs/ladder-%j.out
#SBATCH --no-requeue
#SBATCH --exclusive
# Submitted again, this script measures only what its journals do not hold yet. Its functions,
# whose names begin with lockstep_, are in lib/job.sh, in the folder of this script.
set -euo pipefail

job_name=ladder
results=/results/ladder
suite=/home/me/lockstep
id=$SLURM_JOB_ID
. "$results/jobs/lib/job.sh"
lockstep_begin

lockstep_after() (
    set -e
rm -r /scratch/me/data
)

set +u # what a site loads is not written for it
type module >/dev/null 2>&1 || . /etc/profile || :
module purge || lockstep_say "module purge ended with $?; the modules are loaded anyway"
mend=shell_before
ulimit -l unlimited
mend=modules
module load CUDA/12.6 || lockstep_fail 'module CUDA/12.6 cannot be loaded'
module load 'Python 3' || lockstep_fail 'module Python 3 cannot be loaded'
mend=venv
. '/home/me/my venv/bin/activate'
export PYTHONPATH=$suite${PYTHONPATH:+:$PYTHONPATH}
export MKL_NUM_THREADS=16
export NCCL_DEBUG=WARN
export OMP_NUM_THREADS=16
export OPENBLAS_NUM_THREADS=16
export LOCKSTEP_LAUNCHER=slurm PYTHONNOUSERSITE=1
set -u

num_nodes=2
num_ranks=8 # of the largest step
srun_options=(--cpu-bind=cores --mpi=none)
image= # ranks run outside one
mend=scratch
scratch=/scratch/me/lockstep-$id
stage_in=()
stage_image=
tests=("$suite/bench")
options=(-m 'strong or weak' --size=node --global-batch=1024 --seed=0 --device=cuda --threads-per-rank=16 --label=campaign=ladder '--label=studies=strong,weak' --label=site=here --resume)
measured=$results/launches
lockstep_shape_of() { # lockstep_shape_of WORLD_SIZE: what srun is told of nodes, ranks and GPUs
    case $1 in
        1) shape=(--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=16 --gpus-per-node=h100:1) ;;
        2) shape=(--nodes=1 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=16 --gpus-per-node=h100:2) ;;
        4) shape=(--nodes=1 --ntasks=4 --ntasks-per-node=4 --cpus-per-task=16 --gpus-per-node=h100:4) ;;
        8) shape=(--nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --gpus-per-node=h100:4) ;;
    esac
}
lockstep_enter MKL_NUM_THREADS NCCL_DEBUG OMP_NUM_THREADS OPENBLAS_NUM_THREADS

# One allocation for the whole ladder; other repeats are jobs of their own, unless the campaign has
# share_job.
lockstep_launch w4-r0 4 0
lockstep_launch w1-r0 1 0
lockstep_launch w2-r0 2 0
lockstep_launch w8-r0 8 0
lockstep_launch w1-r1 1 1
lockstep_launch w2-r1 2 1
lockstep_launch w8-r1 8 1
lockstep_launch w4-r1 4 1
lockstep_end
