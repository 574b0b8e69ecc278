"""What a lab needs of a machine, tried by doing it: `make doctor`."""
