"""A W&B project's dashboard: a report and two saved workspaces, made of the library's own classes."""
