"""What pyproject.toml cannot say: packages that are found, and one that is a folder elsewhere."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["flsel*"]), *find_packages("tune"), "flsel.configs"],
    # configs/ stays at the top of the repository, and travels in the wheel inside the package.
    package_dir={"flsel_tune": "tune/flsel_tune", "flsel.configs": "configs"},
)
