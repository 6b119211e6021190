"""Build hook: compile the C++ files of src/mereo/core/kernels into one library where a C++ compiler is found.

The library is plain C with no dependency but the C++ runtime, so one file serves every Python and torch. On x86-64 it
holds the code for three instruction sets and picks at run time, so a wheel runs on other machines than the one that
built it. Without a compiler the build goes on without it, and the reason lies in a text file beside the source, where
`mereo.core.kernels.backends()` reads it. `python hatch_build.py` does the same in a checkout.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).parent / "src" / "mereo" / "core" / "kernels"
SOURCES = sorted([*KERNELS.glob("*.cpp"), *KERNELS.glob("*.hpp")])
LIBRARY = KERNELS / "_library.so"
NOTE = KERNELS / "_library.txt"

FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
# In the order in which `mereo_isa` numbers them; each name is one that gcc and clang know.
X86_LEVELS = [["-march=x86-64"], ["-march=haswell"], ["-march=skylake-avx512", "-mprefer-vector-width=512"]]


class BuildError(Exception):
    """Why nothing was compiled, in one line."""


def compiler() -> str:
    """$CXX, or the first of the usual names that is there."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        if path := shutil.which(name):
            return path
    raise BuildError("no C++ compiler was found (looked for $CXX, c++, g++ and clang++)")


def run(*command: str) -> None:
    """Run a compiler; what it says goes into the error if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise BuildError(f"{Path(command[0]).name} failed with code {done.returncode}: {last}")


def compile_library() -> None:
    """Source -> library, which appears whole or not at all."""
    if sys.platform == "win32":
        raise BuildError("the source needs gcc or clang, which are not looked for on Windows")
    cxx = compiler()
    levels = X86_LEVELS if platform.machine().lower() in {"x86_64", "amd64"} else [[]]
    with tempfile.TemporaryDirectory(dir=KERNELS) as folder:
        objects = []
        for number, level in enumerate(levels):
            options = [*level, f"-DMEREO_ISA={number}", *(["-DMEREO_CHOOSES"] if number == 0 else [])]
            for source in SOURCES:
                if source.suffix == ".cpp":
                    out = f"{folder}/{source.stem}_{number}.o"
                    run(cxx, *FLAGS, *options, "-c", str(source), "-o", out)
                    objects.append(out)
        made = f"{folder}/library"
        # The code that every processor runs comes first: of what all three hold, the linker keeps the first.
        run(cxx, "-shared", "-pthread", *objects, "-o", made)
        # A process that has the old library open keeps it: it is replaced, not written over.
        Path(made).replace(LIBRARY)


def build() -> bool:
    """Whether the library was compiled; the note says from which source, or why not.

    An earlier library stays until then, so that processes which start meanwhile have it.
    """
    try:
        compile_library()
    except (BuildError, OSError) as error:
        LIBRARY.unlink(missing_ok=True)
        NOTE.write_text(f"{error}\n")
        return False
    NOTE.write_text(hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest() + "\n")
    return True


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, outside a build
    pass
else:

    class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
        """Compile before the wheel is packed; the wheel is for this platform if there is a library in it."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if build():
                build_data["pure_python"] = False
                tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                build_data["tag"] = f"py3-none-{tag}"
            else:
                self.app.display_warning(f"without the compiled routing: {NOTE.read_text().strip()}")


if __name__ == "__main__":
    sys.exit(0 if build() else NOTE.read_text().strip())
