"""Executes jobs on Ray: on this machine or on a cluster, several at a time, each in a process of its own."""
