"""Pictures and tables of finished runs."""
