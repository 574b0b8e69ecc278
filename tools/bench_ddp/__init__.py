"""`make bench-ddp`: the wrapper held against stock DDP and against what its links allow."""
