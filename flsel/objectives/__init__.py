"""Local objectives: what a client minimises besides its own loss."""
