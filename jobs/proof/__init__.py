"""Proofs of the gradients, without a lab: on processes of this machine and in memory."""
