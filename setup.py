"""What pyproject.toml cannot say: packages that are found, one that is a folder elsewhere, and addresses.

FLSEL_REPOSITORY is where the release's sources can be read (https://HOST/OWNER/NAME). An index page shows the
README with links that lead there. Without it the README has no links but those to other sites.
"""

import os
import re
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

REPOSITORY = os.environ.get("FLSEL_REPOSITORY", "").rstrip("/")
ROOT = Path(__file__).parent
VERSION = re.search(
    r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
)[1]


def absolute(link):
    """Return a Markdown link whose target is an address, or its text alone."""
    picture, text, target = link.groups()
    if "://" in target or target.startswith("#"):
        return link.group()
    kind = "raw" if picture else "blob"
    return f"{picture}[{text}]({REPOSITORY}/{kind}/v{VERSION}/{target})" if REPOSITORY else text


def page():
    """Return the README for an index page."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)", absolute, text)
    address = rf'<img src="{REPOSITORY}/raw/v{VERSION}/\1"'
    return re.sub(r'<img src="([^"]+)"', address, text) if REPOSITORY else re.sub(r"<img [^>]*>\n*", "", text)


# Folders of files: setuptools warns of one that is in the wheel and not among the packages.
FOLDERS = ["flsel.choosing.page", "flsel.comparison.reporting.page", "flsel.configs", "flsel.atlas"]
FOLDERS += [f"flsel.{top}.{name}" for top in ("configs", "atlas") for name in find_namespace_packages(top)]

setup(
    packages=[*find_packages(include=["flsel*"]), *find_packages("tune"), *FOLDERS],
    # configs/ and atlas/ stay at the top of the repository, and travel in the wheel inside the package.
    package_dir={"flsel_tune": "tune/flsel_tune", "flsel.configs": "configs", "flsel.atlas": "atlas"},
    long_description=page(),
    long_description_content_type="text/markdown",
    project_urls={
        "Source": REPOSITORY,
        "Documentation": f"{REPOSITORY}/tree/v{VERSION}/docs",
        "Changes": f"{REPOSITORY}/blob/v{VERSION}/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }
    if REPOSITORY
    else {},
)
