"""Checks whether Spark can run here, with advice if it cannot."""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

LEAST_JAVA: Final = 17
ANSWER_S: Final = 30.0

GET_JAVA: Final = (
    "sudo apt-get install openjdk-17-jre-headless (or brew install openjdk@17), or point JAVA_HOME at one"
)
GET_SPARK: Final = 'pip install "penstock[spark]"'


def why_not() -> str:
    """Why Spark cannot run here and how to change that; empty if it can."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return f"PySpark is not installed. To have it: {GET_SPARK}"
    java = _java()
    if java is None:
        return f"there is no Java, which Spark runs on. To have it: {GET_JAVA}"
    major = _major_version(java)
    if major is None:
        return f"{java} does not say its version. Another Java: {GET_JAVA}"
    if major < LEAST_JAVA:
        return f"{java} is Java {major}, and Spark wants {LEAST_JAVA} or later. To have it: {GET_JAVA}"
    return ""


def _java() -> str | None:
    """The Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        return str(path) if path.exists() else None
    return shutil.which("java")


def _major_version(java: str) -> int | None:
    """17 of `openjdk version "17.0.15"`; 8 of `java version "1.8.0_402"`."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None
