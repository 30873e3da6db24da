"""How sandboxes are started on this machine: bubblewrap's command line, or without it where params say so."""

from __future__ import annotations

import compileall
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, CodeParams
from pipeline.rewards.code import inside
from pipeline.rewards.code.sandbox import Launch
from pipeline.rewards.code.system_calls import filter_program

WHERE = f"{PARAMS_FILE}: score.code.isolation"
REMEDY = (
    "Score on Linux with bubblewrap (Debian, Ubuntu: `apt-get install bubblewrap libseccomp2`) and user namespaces. "
    "Only where another container has no network and nothing to lose, set it to outer_container_is_the_sandbox"
)
PLACE = "/rollbook"
"""Where the package `inside` is in a sandbox."""
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_TMP_BYTES = 64 << 20
_HERE = Path(inside.__file__).resolve().parent


def make_launch(params: CodeParams) -> Launch:
    """How to start the sandboxes that `params` ask for.

    Raises:
        BadInput: this is not Linux, or bubblewrap or libseccomp is not installed.
    """
    # Now and into files, since a sandbox could not keep what it compiled; where they can't be written, it compiles.
    compileall.compile_dir(_HERE, quiet=2)
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    python = (str(executable), "-s", "-S", "-P", "-B", "-X", "utf8")
    if params.isolation != "bubblewrap":
        return Launch((), python, str(_HERE.parent), b"", b"", is_root=False, is_isolated=False)
    bubblewrap = shutil.which("bwrap")
    if sys.platform != "linux" or bubblewrap is None:
        raise BadInput(WHERE, "it is bubblewrap, and there is no `bwrap` on this machine", REMEDY)
    is_root = os.geteuid() == 0 and _maps_many_users()
    command = (bubblewrap, *_isolation(is_root), *_file_system(executable))
    return Launch(command, python, PLACE, filter_program(True), filter_program(False), is_root, is_isolated=True)


def _isolation(is_root: bool) -> list[str]:
    options = ["--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    options += ["--clearenv", "--setenv", "PYTHONHASHSEED", "0"]
    if is_root:  # to become another user as soon as it is inside, and have no capabilities from there on
        options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return options


def _file_system(executable: Path) -> list[str]:
    prefix = Path(sys.base_prefix).resolve()
    libraries = [folder for folder in map(Path, _LIBRARIES) if folder.is_dir() and not folder.is_symlink()]
    pythons = [prefix / "lib", prefix / "lib64", Path(sysconfig.get_path("stdlib")).resolve(), executable]
    binds = [*libraries, *(path for path in pythons if path.exists() and not path.is_relative_to("/usr/lib"))]
    cache = Path("/etc/ld.so.cache")
    options: list[str] = []
    # A folder that bubblewrap makes by itself is closed to the user that the sandbox becomes.
    folders = {folder for path in (*binds, cache, *map(Path, _DEVICES)) for folder in path.parents}
    for folder in sorted(folders - {Path("/")}):
        options += ["--perms", "0755", "--dir", str(folder)]
    for path in binds:
        options += ["--ro-bind", str(path), str(path)]
    for link in (folder for folder in map(Path, _LIBRARIES) if folder.is_symlink()):
        options += ["--symlink", str(link.readlink()), str(link)]
    options += ["--ro-bind-try", str(cache), str(cache), "--ro-bind", str(_HERE), f"{PLACE}/inside"]
    for device in _DEVICES:
        options += ["--dev-bind", device, device]
    options += ["--perms", "1777", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp"]
    return [*options, "--remount-ro", "/", "--chdir", "/tmp"]


def _maps_many_users() -> bool:
    """Whether this root could be another user: the only user of a namespace can't."""
    lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[2]) for line in lines) > 1
