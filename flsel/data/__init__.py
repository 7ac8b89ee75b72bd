"""Datasets, and how their examples are dealt to clients and held out. Importing the package is light."""
