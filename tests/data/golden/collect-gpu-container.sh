#!/bin/bash
#SBATCH --job-name=ladder-collect
#SBATCH --partition=gpu
#SBATCH --account=project
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=480G
#SBATCH --time=00:30:00
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
#SBATCH --output=/results/ladder/jobs/ladder-collect-%j.out
#SBATCH --no-requeue
#SBATCH --exclusive
# Submitted again, this script measures only what its journals do not hold yet. Its functions,
# whose names begin with lockstep_, are in lib/job.sh, in the folder of this script.
set -euo pipefail

job_name=ladder-collect
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
in_image=(apptainer exec --cleanenv --no-eval --bind=/results/ladder --bind=/scratch --no-home)
needs=(need:container.binds=/scratch) # of each node, by the keys of the site file
# How names of variables begin that enter it.
handed_on=(SLURM_ SLURMD_NODENAME LOCKSTEP_ NCCL_ RCCL_ TORCH_NCCL_ GLOO_ FI_ OFI_NCCL_ UCX_ HSA_ CUDA_VISIBLE_DEVICES)
scratch= # nothing is staged
options=()
lockstep_shape_of() { # lockstep_shape_of WORLD_SIZE: what srun is told of nodes, ranks and GPUs
    case $1 in
        1) shape=(--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=16) ;;
    esac
}
lockstep_enter MKL_NUM_THREADS NCCL_DEBUG OMP_NUM_THREADS OPENBLAS_NUM_THREADS

lockstep_ask_accounting env SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0 sacct --parsable2 --format=JobID,JobIDRaw,State,ExitCode,Elapsed,Submit,Eligible,Start,End,Timelimit,MaxRSS,MaxVMSize,AveCPU,TotalCPU,ReqMem,AllocTRES,AllocCPUS,NNodes,NTasks,TRESUsageInAve,TRESUsageInMax,TRESUsageInTot,NodeList,User,JobName
lockstep_need_python
lockstep_shape_of 1
lockstep_step "$jobs/collect-$id.txt" python3 -m lockstep status --collect "$results" || failed=1
lockstep_step "$jobs/collect-$id.txt" python3 -m lockstep report "$results" || failed=1
lockstep_end
