"""Ranks that somebody else starts: torchrun, SLURM's srun, Open MPI's mpirun."""
