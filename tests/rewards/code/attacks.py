"""Solutions that are wrong and would like to be rewarded, or to do harm. Each says what has to come of it.

They stand against the hidden tests of `f(x) = x * x`, unless they bring their own. `fools_an_exit_code` marks those
that a harness passes that appends asserts to the solution and trusts the exit code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SECRET = 918_273_645_546_372_819
"""An answer that nobody guesses."""
ASSERTS: dict[str, Any] = {"kind": "asserts", "functions": ["f"], "tests": ["assert f(3) == 9", "assert f(5) == 25"]}
SECRETS: dict[str, Any] = {
    "kind": "calls",
    "function": "f",
    "cases": [{"args": [n], "expected": SECRET + n} for n in (1, 2)],
}
SECRET_ASSERTS: dict[str, Any] = {"kind": "asserts", "functions": ["f"], "tests": [f"assert f(1) == {SECRET}"]}
PROGRAM: dict[str, Any] = {
    "kind": "program",
    "cases": [{"stdin": "3\n", "stdout": "9\n"}, {"stdin": "5\n", "stdout": "25\n"}],
}


@dataclass(frozen=True)
class Attack:
    """A wrong solution, the hidden tests if not the usual ones, and the statuses that it may have."""

    name: str
    code: str
    statuses: str
    tests: dict[str, Any] | None = None
    fools_an_exit_code: bool = False


ATTACKS = [
    # The exit code
    Attack("sys_exit_at_import", "import sys\nsys.exit(0)", "fail", fools_an_exit_code=True),
    Attack("os_exit_at_import", "import os\nos._exit(0)", "fail", fools_an_exit_code=True),
    Attack("sys_exit_in_function", "import sys\ndef f(x):\n    sys.exit(0)", "fail", fools_an_exit_code=True),
    Attack("os_exit_in_function", "import os\ndef f(x):\n    os._exit(0)", "fail", fools_an_exit_code=True),
    Attack(
        "excepthook",
        "import os, sys\nsys.excepthook = lambda *_: os._exit(0)\ndef f(x):\n    return 0",
        "fail",
        fools_an_exit_code=True,
    ),
    Attack(
        "atexit",
        "import atexit, os\natexit.register(os._exit, 0)\ndef f(x):\n    return 0",
        "fail",
        fools_an_exit_code=True,
    ),
    Attack("atexit_program", "import atexit, os\natexit.register(os._exit, 0)\nraise ValueError", "fail", PROGRAM),
    Attack("exit_code_program", "import os\nprint('PASS')\nos._exit(0)", "fail", PROGRAM),
    Attack("exit_code_of_no_signal", "import os\ndef f(x):\n    os._exit(200)", "fail"),
    Attack("signal_without_a_name", "import os\ndef f(x):\n    os.kill(os.getpid(), 40)", "fail"),
    Attack("signal_without_a_name_program", "import os\nos.kill(os.getpid(), 40)", "fail", PROGRAM),
    # Lying objects
    Attack(
        "always_equal_object",
        "class Equal:\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return Equal()",
        "fail",
        fools_an_exit_code=True,
    ),
    Attack(
        "always_equal_subclass",
        "class Equal(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\n"
        "def f(x):\n    return Equal()",
        "fail",
        fools_an_exit_code=True,
    ),
    Attack(
        "always_equal_subclass_asserts",
        "class Equal(int):\n    __eq__ = lambda self, other: True\ndef f(x):\n    return Equal()",
        "fail",
        ASSERTS,
    ),
    Attack(
        "always_equal_object_asserts",
        "class E:\n    __eq__ = lambda *_: True\ndef f(x):\n    return E()",
        "fail",
        ASSERTS,
    ),
    Attack(
        "true_object",
        "def f(x):\n    return object()",
        "fail",
        {"kind": "asserts", "functions": ["f"], "tests": ["assert f(7)"]},
    ),
    Attack("lying_class", "class C:\n    __class__ = int\ndef f(x):\n    return C()", "fail"),
    Attack(
        "always_equal_within",
        "class E:\n    __eq__ = lambda *_: True\n    __hash__ = lambda _: 0\ndef f(x):\n    return [E()]",
        "fail",
        {"kind": "calls", "function": "f", "cases": [{"args": [1], "expected": [2]}]},
    ),
    Attack("one_point_zero", "def f(x):\n    return float(x * x)", "fail"),
    Attack(
        "true_for_one",
        "def f(x):\n    return True",
        "fail",
        {"kind": "calls", "function": "f", "cases": [{"args": [1], "expected": 1}]},
    ),
    Attack(
        "raw_number_for_true",
        """
import sys
sys.modules["inside.frames"].json_text = lambda _: '{"value":1}'
def f(x):
    return 0
""",
        "fail",
        {"kind": "calls", "function": "f", "cases": [{"args": [1], "expected": True}]},
    ),
    # Words
    Attack("pass_marker", "print('PASS', 'OK', 'All tests passed', sep='\\n')", "fail", PROGRAM),
    # Looking for the answers
    Attack(
        "walking_frames",
        """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_code.co_consts]:
            if isinstance(value, int) and value >= x * x and value != x:
                return value
        frame = frame.f_back
""",
        "fail",
        fools_an_exit_code=True,
    ),
    *(
        Attack(
            f"searching_memory_{kind}",
            f"""
import gc
def numbers(value, depth=0):
    if isinstance(value, int):
        yield value
    elif depth < 8 and isinstance(value, (list, tuple, set)):
        for each in value:
            yield from numbers(each, depth + 1)
    elif depth < 8 and isinstance(value, dict):
        for each in list(value.values()):
            yield from numbers(each, depth + 1)
def f(x):
    for held in gc.get_objects():
        for number in numbers(held):
            if str(number).startswith({str(SECRET)[:9]!r}):
                return number
""",
            "fail",
            tests,
        )
        for kind, tests in (("calls", SECRETS), ("asserts", SECRET_ASSERTS))
    ),
    Attack(
        "reading_files_for_the_answers",
        f"""
import os
def f(x):
    for folder, _, names in os.walk("/"):
        if folder.startswith(("/usr", "/lib")):
            continue
        for name in names:
            try:
                text = open(os.path.join(folder, name), errors="replace").read(1 << 20)
            except OSError:
                continue
            at = text.find({str(SECRET)[:9]!r})
            if at >= 0:
                return int(text[at:at + 18])
""",
        "fail timeout",
        SECRET_ASSERTS,
    ),
    Attack("own_source", "def f(x):\n    return int(open(__file__).read().split('== ')[1].split()[0])", "fail"),
    # Overwriting what judges
    Attack(
        "patching_builtins",
        """
import builtins, sys
builtins.isinstance = builtins.all = builtins.any = lambda *_: True
builtins.len = lambda _: 1
builtins.sorted = lambda *_, **__: []
sys.modules["inside.frames"].json_text = lambda _: '{"value": true}'
def f(x):
    return 0
""",
        "fail protocol_error",
    ),
    Attack(
        "patching_json",
        "import json\njson.dumps = lambda *_, **__: '{\"value\":true}'\ndef f(x):\n    return 0",
        "fail",
    ),
    Attack(
        "patching_asserts",
        """
import builtins
class Never(Exception):
    def __new__(cls, *_):
        import os
        os._exit(0)
builtins.AssertionError = Never
def f(x):
    return 0
""",
        "fail",
        ASSERTS,
    ),
    Attack(
        "patching_the_runner",
        """
import sys
for name in [name for name in sys.modules if name.startswith("inside")]:
    for key, value in list(vars(sys.modules[name]).items()):
        if callable(value):
            setattr(sys.modules[name], key, lambda *_, **__: {"value": True})
def f(x):
    return 0
""",
        "fail protocol_error timeout",
        ASSERTS,
    ),
    Attack(
        "names_of_the_tests",
        "sorted = len = abs = all = lambda *_: True\ndef f(x):\n    return []",
        "fail",
        {
            "kind": "asserts",
            "functions": ["f"],
            "tests": ["assert sorted(f(3)) == [1, 2]", "assert all(f(n) == n for n in (1, 2))"],
        },
    ),
    Attack(
        "ending_the_loop_of_a_test",
        "def f(x):\n    raise StopIteration",
        "fail",
        {
            "kind": "asserts",
            "functions": ["f"],
            "tests": ["for got, want in zip(map(f, [3, 5]), [9, 25]): assert got == want"],
        },
    ),
    Attack(
        "emptying_the_argument",
        "def f(xs):\n    xs.clear()\n    return []",
        "fail",
        {"kind": "asserts", "functions": ["f"], "tests": ["xs = [3, 1]\nassert f(xs) == sorted(xs)"]},
    ),
    Attack(
        "emptying_the_argument_by_a_forged_reply",
        """
import sys
sys.modules["inside.objects"].Objects.answer = lambda *_: {"value": [], "args": [[]]}
def f(xs):
    return []
""",
        "fail",
        {"kind": "asserts", "functions": ["f"], "tests": ["xs = [3, 1]\nassert f(xs) == sorted(xs)"]},
    ),
    Attack(
        "another_list_for_each_line",
        """
class Items:
    n_looks = 0
    def __init__(self, items):
        self.items = items
    def __iter__(self):
        self.n_looks += 1
        return iter(self.items if self.n_looks == 1 else [])
    def __len__(self):
        return len(self.items)
    def __getitem__(self, key):
        return [] if isinstance(key, slice) else 0
def f(xs):
    return Items(xs)
""",
        "fail",
        {
            "kind": "asserts",
            "functions": ["f"],
            "tests": [
                "ys = f([3, 1])\nassert sorted(ys) == [1, 3]\nassert all(a <= b for a, b in zip(ys, ys[1:]))",
                "ys = f([3, 1])\nassert sorted(ys) == [1, 3]\nassert list(ys) == sorted(ys)",
                "ys = f([3, 1])\nassert sorted(ys) == [1, 3]\nassert all(ys[i] <= ys[i + 1] for i in [0])",
            ],
        },
    ),
    Attack(
        "blaming_the_test",
        "class X:\n    def sort(self, **_):\n        return None\ndef f(x):\n    return X()",
        "fail",
        {"kind": "asserts", "functions": ["f"], "tests": ["xs = f(3)\nxs.sort(key=lambda x: -x)\nassert xs == [3, 2]"]},
    ),
    Attack(
        "answering_before_being_asked",
        """
import os
frame = b'\\0\\0\\0\\x0e{"value":true}'
for descriptor in range(3, 64):
    try:
        os.write(descriptor, frame * 100)
    except OSError:
        pass
""",
        "fail",
        ASSERTS,
    ),
    Attack(
        "overwriting_files",
        """
import os
def f(x):
    for folder, _, names in os.walk("/"):
        for name in names:
            if folder.startswith("/dev"):
                continue
            for action in (os.unlink, lambda path: open(path, "w").write("assert True")):
                try:
                    action(os.path.join(folder, name))
                    return f"changed {folder}/{name}"
                except OSError:
                    pass
    return 0
""",
        "fail timeout",
    ),
    Attack(
        "removing_all",
        "import shutil\ndef f(x):\n    shutil.rmtree('/', ignore_errors=True)\n    return 0",
        "fail timeout",
    ),
    # The private descriptors
    *(
        Attack(
            f"forging_results_{name}",
            f"""
import os
frame = {frame!r}
for descriptor in range(1, 64):
    try:
        os.write(descriptor, frame)
    except OSError:
        pass
def f(x):
    return 0
""",
            statuses,
        )
        for name, frame, statuses in (
            ("words", b"PASS\nPASS\nPASS\n", "protocol_error"),
            ("no_json", b"\0\0\0\4pass", "protocol_error"),
            ("no_message", b"\0\0\0\2[]", "protocol_error"),
            ("other_message", b'\0\0\0\x0f{"status":"OK"}', "protocol_error"),
            ("nesting", b"\0\0\x40\0" + b"[" * 0x4000, "protocol_error"),
            ("number", b"\0\0\x40\0" + b"9" * 0x4000, "protocol_error"),
            ("value", b'\0\0\0\x19{"value":{"int": "0x19"}}', "fail protocol_error"),
        )
    ),
    Attack(
        "stealing_requests",
        """
import os
def f(x):
    for descriptor in range(64):
        try:
            if descriptor != 4:
                os.set_blocking(descriptor, False)
                os.read(descriptor, 1 << 20)
        except OSError:
            pass
    return 0
""",
        "fail timeout protocol_error",
    ),
    Attack("closing_descriptors", "import os\nos.closerange(0, 256)\ndef f(x):\n    return 0", "fail"),
    Attack("closing_and_living_on", "import os\nos.closerange(0, 256)\nwhile True: pass", "fail"),
    Attack("reading_stdin", "import sys\ndef f(x):\n    return len(sys.stdin.read())", "fail"),
    # Time
    Attack("endless_loop", "def f(x):\n    while True: pass", "timeout"),
    Attack("endless_loop_program", "while True: pass", "timeout", PROGRAM),
    Attack("sleeping", "import time\ndef f(x):\n    time.sleep(1000)", "timeout"),
    Attack(
        "ignoring_signals",
        "import signal\nfor s in set(signal.valid_signals()) - {9, 19}:\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\nwhile True: pass",
        "timeout",
    ),
    Attack("catastrophic_regex", "import re\ndef f(x):\n    return re.match('(a+)+$', 'a' * 64 + 'b')", "timeout"),
    Attack("huge_power", "def f(x):\n    return 9 ** 9 ** 9", "timeout limit"),
    Attack(
        "stopping_the_parent", "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nprint(9)", "timeout", PROGRAM
    ),
    # Output and results
    Attack("endless_output", "while True: print('x' * 1000)", "limit", PROGRAM),
    Attack(
        "endless_output_caught",
        """
while True:
    try:
        print("x" * 1000, flush=True)
    except OSError:
        import os
        os._exit(0)
""",
        "limit",
        PROGRAM,
    ),
    Attack("invalid_utf8", "import sys\nsys.stdout.buffer.write(b'\\xff\\xfe9\\n')", "fail", PROGRAM),
    Attack("much_invalid_utf8", "import sys\nsys.stdout.buffer.write(b'\\xff' * (1 << 20))", "limit", PROGRAM),
    Attack("half_a_surrogate", "def f(x):\n    return '\\ud800'", "fail"),
    Attack("error_of_surrogates", "def f(x):\n    raise ValueError('\\ud800')", "fail"),
    Attack("broken_error", "class E(Exception):\n    def __str__(self): raise E\ndef f(x):\n    raise E", "fail"),
    Attack("huge_result", "def f(x):\n    return list(range(300_000))", "limit"),
    Attack("huge_text", "def f(x):\n    return 'x' * (1 << 22)", "limit"),
    Attack("cyclic_result", "def f(x):\n    xs = []\n    xs.append(xs)\n    return xs", "limit"),
    Attack("deep_result", "def f(x):\n    xs = []\n    for _ in range(100_000): xs = [xs]\n    return xs", "limit"),
    Attack("colliding_result", "def f(x):\n    return {n * (2**61 - 1): 0 for n in range(1000)}", "fail"),
    Attack(
        "colliding_result_asserts",
        "def f(x):\n    return {n * (2**61 - 1): 0 for n in range(1000)}",
        "fail timeout",
        ASSERTS,
    ),
    Attack("half_a_million_digits", "def f(x):\n    return 1 << 1_660_964", "fail limit"),
    # Memory
    Attack("heap", "def f(x):\n    return len(bytearray(1 << 30))", "limit"),
    Attack("heap_program", "x = []\nwhile True: x.append(bytearray(1 << 20))", "fail limit", PROGRAM),
    Attack("dev_shm", "def f(x):\n    return open('/dev/shm/bomb', 'wb').write(bytes(1 << 27))", "fail"),
    Attack("tmp", "def f(x):\n    for n in range(10**6): open(f'/tmp/{n}', 'wb').write(bytes(1 << 15))", "fail"),
    Attack("many_files", "def f(x):\n    for n in range(10**6): open(f'/tmp/{n}', 'w').close()", "fail timeout limit"),
    *(
        Attack(
            name,
            f"import ctypes\ndef f(x):\n    got = ctypes.CDLL(None).{call}\n    return x * x if got >= 0 else got",
            "fail",
        )
        for name, call in (
            ("sysv_memory", "shmget(0, 1 << 27, 0o1600)"),
            ("memfd", "memfd_create(b'bomb', 0)"),
            ("nested_user_namespace", "unshare(0x10000000)"),
            ("nested_mount_namespace", "unshare(0x00020000)"),
            ("ptrace", "ptrace(16, 1, 0, 0)"),
            ("setuid", "setuid(0)"),
            ("mount", "mount(b'none', b'/tmp', b'tmpfs', 0, 0)"),
        )
    ),
    # Processes
    Attack(
        "several_processes",
        "import os\ndef f(x):\n    for _ in range(8): os.fork()\n    return len(bytearray(1 << 27))",
        "fail",
    ),
    Attack("fork_bomb", "import os\nwhile True: os.fork()", "fail"),
    Attack("fork_bomb_program", "import os\nwhile True: os.fork()", "fail", PROGRAM),
    Attack("fork_bomb_in_shell", "import os\ndef f(x):\n    return os.system(':(){ :|:& };:') or 0", "fail"),
    Attack(
        "thread_bomb",
        "import threading, time\ndef f(x):\n    threading.stack_size(1 << 15)\n"
        "    while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        "fail limit",
    ),
    Attack(
        "threads_that_stay",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nprint(9)",
        "timeout",
        PROGRAM,
    ),
    Attack(
        "daemon",
        "import os, time\ndef f(x):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        "            time.sleep(1000)\n        os._exit(0)\n    return 0",
        "fail",
    ),
    Attack(
        "subprocess",
        "import subprocess, sys\ndef f(x):\n    return len(subprocess.check_output([sys.executable, '-c', '']))",
        "fail",
    ),
    Attack("exec", "import os, sys\ndef f(x):\n    os.execv(sys.executable, ['python', '-c', 'pass'])", "fail"),
    Attack(
        "killing_the_parent",
        "import os, signal\ndef f(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n    return 0",
        "fail",
    ),
    Attack(
        "killing_the_parent_program",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nprint(9)",
        "fail limit",
        PROGRAM,
    ),
    Attack("killing_all", "import os, signal\ndef f(x):\n    os.kill(-1, signal.SIGKILL)\n    return 0", "fail limit"),
    Attack("killing_itself", "import os, signal\ndef f(x):\n    os.kill(os.getpid(), signal.SIGKILL)", "limit"),
    # Crashes
    Attack("unbounded_recursion", "def f(x):\n    return f(x) + 1", "fail"),
    Attack(
        "unbounded_recursion_unlimited",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x) + 1",
        "fail limit timeout",
    ),
    Attack("segfault", "import ctypes\ndef f(x):\n    return ctypes.string_at(0)", "fail"),
    Attack("syntax_error", "def f(x) return", "fail"),
    Attack("null_byte", "def f(x):\n    return 0\0", "fail"),
    # Outside
    Attack(
        "network",
        "import socket\ndef f(x):\n    socket.create_connection(('127.0.0.1', 22), 1)\n    return x * x",
        "fail",
    ),
    Attack(
        "writing_home",
        "import os\ndef f(x):\n    open(os.path.expanduser('~/attack'), 'w').close()\n    return x * x",
        "fail",
    ),
    Attack("environment", "import os\ndef f(x):\n    return x * x if os.environ else 0", "fail"),
    Attack("environment_of_others", "def f(x):\n    return x * x if open('/proc/1/environ').read() else 0", "fail"),
    Attack("passwords", "def f(x):\n    return x * x if open('/etc/passwd').read() else 0", "fail"),
    Attack(
        "symlink_out",
        "import os\ndef f(x):\n    os.symlink('/etc/ssl', '/tmp/x')\n    return x * x if os.listdir('/tmp/x') else 0",
        "fail",
    ),
    Attack(
        "more_limits",
        "import resource\ndef f(x):\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n    return x * x",
        "fail",
    ),
]
