"""Datasets, and how their examples are split over clients and held out. Importing the package is light."""
