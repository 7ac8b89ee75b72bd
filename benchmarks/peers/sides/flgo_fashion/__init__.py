"""FLGo's benchmark package around the workload: 100 clients with equal shares of its images."""
