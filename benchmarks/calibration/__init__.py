"""What the audit says of trained models, good and broken: `make calibrate`."""
