"""Makes the CUDA libraries of the nvidia-* wheels loadable by name.

The program calls `make_loadable` at its start, and so does every Python process of an environment with the .pth file
that `environment.sh --gpu` writes.
"""

import glob
import os
import sys

_VARIABLE = "LD_LIBRARY_PATH"


def make_loadable() -> None:
    """Restarts Python once with the folders of the libraries in LD_LIBRARY_PATH.

    The dynamic loader reads the variable when a process starts and not later.  Child processes
    inherit it, so they do not restart.
    """
    before = os.environ.get(_VARIABLE, "")
    path = library_path(sys.path, before)
    # Python inside of another program has no command line to start again.
    if path != before and sys.executable and sys.orig_argv[1:]:
        os.environ[_VARIABLE] = path
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def library_path(search_path: list[str], before: str) -> str:
    """Returns LD_LIBRARY_PATH with the folders of the libraries, which come first.

    Args:
        search_path: folders of Python packages, such as `sys.path`.
        before: value of the variable; may be empty.
    """
    libraries = [file for folder in search_path for file in glob.glob(f"{folder}/nvidia/*/lib/*.so.*")]
    added = sorted({os.path.dirname(file) for file in libraries} - set(before.split(os.pathsep)))
    return os.pathsep.join([*added, *filter(None, [before])])
