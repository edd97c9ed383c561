"""Compiles the hot record loop with mypyc where a C compiler is at hand.

The same source runs uncompiled, only slower, so a machine without a compiler still installs.
"""

import os
import warnings

from setuptools import Extension, setup

HOT_MODULES = ["src/penstock/batch/_scan.py", "src/penstock/batch/_rows.py"]


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
    for extension in extensions:
        extension.optional = True
    return extensions


setup(ext_modules=hot_extensions())
