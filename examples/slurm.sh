#!/bin/bash
# One process for each GPU, here of two nodes with four each. In the clone, with its environment active:
#     sbatch examples/slurm.sh --config=configs/cifar10.py --workdir=runs/cifar10
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
# Not --gpus-per-task: it hides from a task the GPU that it takes, the one of its number on the node.
# Two minutes before its time is over the run saves and ends with 143; the same sbatch line goes on.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python -m focalgeo.run "$@"
