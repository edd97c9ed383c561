"""Compiles the hot record loops with mypyc where a C compiler is at hand.

The same sources run uncompiled, only slower, so a machine without a compiler still installs; and
PENSTOCK_PURE_PYTHON=1 asks for that.
"""

import os
import warnings
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

HOT_MODULES = [
    "src/penstock/batch/_scan.py",
    "src/penstock/batch/_count.py",
    "src/penstock/batch/_rows.py",
    "src/penstock/batch/_encode.py",
    "src/penstock/batch/_partition.py",
]


def hot_extensions() -> list[Extension]:
    if os.environ.get("PENSTOCK_PURE_PYTHON") == "1":
        return []
    try:
        from mypyc.build import mypycify

        # Only these files' own errors may stop it: other modules' imports need not be installed in a build.
        flags = ["--strict", "--follow-imports=silent"]
        extensions: list[Extension] = mypycify([*flags, *HOT_MODULES], opt_level="3", separate=True)
    except (ImportError, OSError, SystemExit) as problem:
        warnings.warn(f"mypyc is not usable here ({problem}); installing pure Python", stacklevel=1)
        return []
    return extensions


class AllOrNothing(build_ext):
    """mypyc makes two extensions of a module, and one without the other does not import."""

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        except (CCompilerError, ExecError, PlatformError) as problem:
            warnings.warn(f"no C compiler that works ({problem}); installing pure Python", stacklevel=1)
            for built in self.get_outputs():
                Path(built).unlink(missing_ok=True)
            self.extensions = []


setup(ext_modules=hot_extensions(), cmdclass={"build_ext": AllOrNothing})
