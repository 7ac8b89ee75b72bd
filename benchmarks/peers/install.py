"""Make each peer's virtual environment from the package registry.

python benchmarks/peers/install.py DIR [NAME ...]

A torch of several gigabytes in each would say nothing: the environments see this one's packages, torch among
them, behind their own, so that all sides compute with the same torch.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PEERS = {
    "pfl": "pfl[pytorch]==0.6.0",
    "flower": "flwr[simulation]==1.42.0",
    "fedlab": "fedlab==1.3.0",
    "flgo": "flgo==0.4.4",
}
# Left to this environment.
SHARED = ("torch", "torchvision")


def main() -> None:
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(PEERS):
        raise SystemExit(f"usage: install.py DIR [{' | '.join(PEERS)} ...]")
    folder = Path(sys.argv[1]).resolve()
    for name in sys.argv[2:] or PEERS:
        install(folder / name, PEERS[name])


def install(home: Path, requirement: str) -> None:
    """Make one environment."""
    venv.create(home, with_pip=False, clear=True)
    python = home / "bin/python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    Path(own, "torch_of_flsel.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    left_out = home / "left_out.txt"
    left_out.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in SHARED), encoding="utf-8")
    command = [
        "uv",
        "pip",
        "install",
        "--compile-bytecode",
        "--python",
        str(python),
        "--override",
        str(left_out),
        requirement,
    ]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
