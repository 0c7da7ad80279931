"""What a student's code does to the grader: nothing. Real processes, each with code that misbehaves in its own way."""

import json
import signal
import socket
import struct
import sys
import textwrap
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.processes import until
from vantage.errors import BadInput, Refused
from vantage.studies.exercises import exercises, grade
from vantage.studies.exercises.grading import MOST_BYTES, _describe_end, grade_in
from vantage.studies.sandbox import CodeSandbox, ProcessEnded, SandboxProcess, restrictions
from vantage.studies.sandbox.process import MOST_OUTPUT

K1 = exercises()["K1"]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="held by the Linux kernel")


@pytest.fixture(scope="module")
def sandbox():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_OF_THE_GRADER", "hunter2")
        opened = CodeSandbox().__enter__()
    yield opened
    opened.__exit__(None, None, None)


def grade_code(sandbox, code, *, tag="K1", **options):
    """Grade the answer of an exercise with ``code`` before it."""
    exercise = exercises()[tag]
    return grade_in(sandbox, exercise, textwrap.dedent(code) + exercise.answer, **{"seconds": 10.0, **options})


def failures(grade):
    return "\n".join(check.words for check in grade.checks if not check.passed)


def children(sandbox):
    pid = sandbox._process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def living(session):
    """The processes of a session that are not dead yet."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, sid = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it ended while we looked
            continue
        if int(sid) == session and state not in "ZX":
            found.append(int(path.parent.name))
    return found


# ---- what ends a process


def test_a_loop_that_never_ends(sandbox):
    grade = grade_code(sandbox, "while True: pass\n", seconds=0.5)
    assert grade.checks[0].words.startswith("it did not finish within 0.5 seconds")
    assert [check.passed for check in grade.checks] == [False] * 4  # the file, and the checks that were not looked at


@pytest.mark.sampled
def test_a_loop_in_a_function_names_the_check(sandbox):
    grade = grade_in(sandbox, K1, K1.answer.replace("    return n\n", "    while True: pass\n"), seconds=3.0)
    assert [(c.name, c.passed) for c in grade.checks[:3]] == [
        ("the file runs", True),
        ("without a cache", True),
        ("with a cache", False),
    ]
    assert "loop that never ends" in grade.checks[2].words
    assert "not looked at" in grade.checks[3].words


@LINUX
def test_signals_that_are_ignored_do_not_help_and_nothing_is_left(sandbox):
    code = """
    import signal, time
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            time.sleep(1)
        except BaseException:
            pass
    """
    assert "did not finish" in failures(grade_code(sandbox, code, seconds=0.5))
    assert children(sandbox) == []


def test_calls_of_a_layer_without_end(sandbox):
    answer = exercises()["P1"].answer.replace("    out = layer(x)\n", "    while True: layer(x)\n")
    assert "did not finish" in failures(grade_in(sandbox, exercises()["P1"], answer, seconds=60.0))


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)\n", "exit()\n", "raise SystemExit\n"])
def test_leaving_the_program(sandbox, code):
    assert "ends the program" in failures(grade_code(sandbox, code))


def test_leaving_without_a_word(sandbox):
    grade = grade_in(sandbox, K1, "import os\n" + K1.answer.replace("return n - t", "os._exit(3)"))
    assert "ended its own process (exit code 3)" in failures(grade)


@pytest.mark.parametrize("then", ["", "while True: pass\n", "import time; time.sleep(60)\n"], ids=["", "loop", "sleep"])
@pytest.mark.parametrize("code", ["os.closerange(0, 64)\n", "os.close(3)\n"])
def test_closing_what_it_is_asked_over(sandbox, code, then):
    words = failures(grade_code(sandbox, "import os\n" + code + then))
    assert "closed the connection over which it is asked" in words
    assert "GiB" not in words


@LINUX
def test_a_kill_that_is_not_ours_may_be_memory(sandbox):
    code = "import ctypes\ngetattr(ctypes.CDLL(None), 'raise')(9)\n"
    assert "died of SIGKILL: it may have needed more than 4.0 GiB" in failures(grade_code(sandbox, code))


@LINUX
def test_a_kill_for_computing_too_long_is_the_limit_of_time(sandbox):
    """The kernel's limit, where the grader's own clock stands still."""
    with sandbox.process("answer.py", seconds=0.1, memory=2**30) as process:
        process.seconds_left = 60.0
        with pytest.raises(ProcessEnded) as ended:
            process.run_file("while True: pass\n")
    assert (ended.value.reason, process.status, process.alive) == ("disconnected", -signal.SIGKILL, False)
    assert "did not finish within 0.1 seconds" in _describe_end("disconnected", process, 0.1, 2**30)


@LINUX
def test_a_crash(sandbox):
    assert "died of SIGSEGV" in failures(grade_code(sandbox, "import ctypes; ctypes.string_at(0)\n"))
    assert "died of SIGABRT" in failures(grade_code(sandbox, "import os; os.abort()\n"))


# ---- memory


@LINUX
@pytest.mark.parametrize(
    "code", ["import torch; torch.ones(10**10)\n", "b = bytearray(8 * 2**30)\n", "x = [0] * 10**9\n"], ids=str.split
)
def test_a_huge_allocation(sandbox, code):
    assert "more memory than an answer may have" in failures(grade_code(sandbox, code, memory=2**28))


@LINUX
def test_memory_that_grows(sandbox):
    grade = grade_code(sandbox, "kept = []\nwhile True: kept.append(bytes(2**20))\n", memory=2**27)
    assert "more memory than an answer may have" in failures(grade)


def test_enough_memory_is_enough(sandbox):
    assert grade_code(sandbox, "import torch; x = torch.ones(10**6)\n", memory=2**27).passed


# ---- errors and output


def test_an_error_with_the_students_lines_only(sandbox):
    code = """
    import json
    def helper(text):
        return json.loads(text)
    def start():
        return helper("{")
    start()
    """
    words = failures(grade_code(sandbox, code))
    assert "it raises JSONDecodeError: Expecting property name" in words
    assert 'line 6, in start: return helper("{")' in words
    assert "line 4, in helper: return json.loads(text)" in words
    assert "decoder" not in words
    assert "worker.py" not in words


def test_recursion_is_shortened(sandbox):
    words = failures(grade_code(sandbox, "def f(): return f()\nf()\n"))
    assert "calls itself without end" in words
    assert len(words.splitlines()) < 15


def test_a_message_that_cannot_be_shown(sandbox):
    code = "class Bad(Exception):\n    def __str__(self): raise self\nraise Bad\n"
    assert "it raises Bad: (its message cannot be shown)" in failures(grade_code(sandbox, code))


def test_syntax_errors(sandbox):
    words = failures(grade_in(sandbox, K1, "# vantage exercise K1\ndef f(:\n    pass\n", "mine.py"))
    assert words.startswith("Python cannot read the file: ")
    assert "line 2: def f(:" in words


def test_null_bytes_and_deep_nesting(sandbox):
    assert not grade_in(sandbox, K1, "x = 1\0\n" + K1.answer).passed
    assert not grade_in(sandbox, K1, "x = " + "(" * 5000 + ")" * 5000 + "\n" + K1.answer).passed


def test_missing_and_misspelt_names(sandbox):
    assert "no function named without_cache" in failures(grade_in(sandbox, K1, "x = 1\n"))
    assert "Did you mean 'without_cach'?" in failures(grade_in(sandbox, K1, "def without_cach(n): pass\n"))
    assert "without_cache is no function" in failures(grade_in(sandbox, K1, "without_cache = 3\n"))
    assert "no value named SCORES" in failures(grade_in(sandbox, exercises()["A2"], "x = 1\n"))


def test_wrong_arguments(sandbox):
    assert "raises TypeError" in failures(grade_in(sandbox, K1, K1.answer.replace("(n, t)", "(n)")))


def test_printing_is_shown_and_capped(sandbox):
    assert grade_code(sandbox, "print('hello')\n").output == "hello\n"
    grade = grade_code(sandbox, "import sys\nprint('x' * 10**6)\nsys.stderr.write('y' * 10**6)\n")
    assert grade.passed
    assert len(grade.output) < MOST_OUTPUT + 200
    assert "bytes more, which were thrown away" in grade.output
    assert grade.output.startswith("xxx")


def test_printing_without_end(sandbox):
    grade = grade_code(sandbox, "while True: print('x' * 1000)\n", seconds=1.0)
    assert "did not finish" in failures(grade)
    assert len(grade.output) < MOST_OUTPUT + 200


@LINUX
def test_reading_what_is_printed_counts_as_time():
    """A pipe that is always full is never waited for: the time goes by in reading it."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open("/dev/zero", "rb") as full:
        process = SandboxProcess(ours, full.fileno(), 1.0)
        with pytest.raises(ProcessEnded, match="timeout"):
            process.run_file("")
        assert process.dropped_bytes > 10 * MOST_OUTPUT  # it was read all along


def test_printing_much_without_end(sandbox):
    words = failures(grade_code(sandbox, "while True: print('x' * 100_000)\n", seconds=1.0))
    assert "did not finish within 1 seconds" in words
    assert "SIGKILL" not in words


def test_output_that_is_closed(sandbox):
    """A closed pipe can be read at any time, and is not read again and again while an answer computes."""
    code = "import os, sys, time\nos.close(1); os.close(2)\nsys.stdout = sys.stderr = open('said', 'w')\n"
    before = time.process_time()
    assert grade_code(sandbox, code + "time.sleep(2)\n").passed
    assert time.process_time() - before < 1.0


def test_bytes_that_are_no_text(sandbox):
    assert "\ufffd" in grade_code(sandbox, r"import os; os.write(1, b'\xff\xfe')" + "\n").output


def test_standard_input_is_empty(sandbox):
    assert "standard input, which is empty" in failures(grade_code(sandbox, "name = input('who? ')\n"))
    assert grade_code(sandbox, "import sys; assert sys.stdin.read() == ''\n").passed


# ---- values of the wrong kind


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("None", "Does the function end with a return?"),
        ("[[1.0]]", "return a torch tensor"),
        ("(q @ k.T).numpy()", "a NumPy array"),
        ("q[:1]", "it should be (4, 4)"),
        ("q * float('nan')", "has NaN at [0, 0]"),
        ("q.long()", "floating point"),
        ("q + 0j", "complex"),
        ("lambda: 3", "an object of type function"),
        ("torch.zeros(10**7)", "far larger than anything"),
        ("q.to_sparse()", "plain one"),
        ("Everything()", "an object of type Everything"),
        ("loop", "nested more than"),
        ("10**100", "60 digits"),
        ("list(range(10**6))", "100,000 are the most"),
        ("q.requires_grad_() * 2", ""),
        ("torch.nn.Parameter(q)", ""),
    ],
)  # fmt: skip
def test_values_of_the_wrong_kind(sandbox, value, words):
    code = f"""
import torch
class Everything:
    def __eq__(self, other): return True
    def __getattr__(self, name): return self
loop = []
loop.append(loop)
def attention(q, k, v):
    return {value}
"""
    grade = grade_in(sandbox, exercises()["A4"], code)
    assert not grade.passed
    assert words in failures(grade)


# ---- cheating


def test_the_library_is_not_there(sandbox):
    assert "cannot be imported in an answer" in failures(grade_code(sandbox, "import vantage\n"))
    assert "cannot be imported in an answer" in failures(
        grade_code(sandbox, "from vantage.functional import alibi_bias\n")
    )


@LINUX
def test_nor_by_going_round_the_refusal(sandbox):
    root = str(Path(restrictions.__file__).parents[3])
    code = f"import sys\nsys.meta_path.pop(0)\nsys.path.insert(0, {root!r})\nimport vantage.errors\n"
    grade = grade_code(sandbox, code)
    if "landlock" not in grade.held or any(root.startswith(p) for p in (sys.prefix, sys.base_prefix, "/usr")):
        pytest.skip("the library lies where Python may read")
    assert "raises" in failures(grade)


def test_replies_that_are_forged_decide_nothing(sandbox):
    """Code that writes to the socket itself only puts wrong values in the place of its own."""

    def framed(message):
        raw = json.dumps(message).encode()
        return struct.pack(">I", len(raw)) + raw

    names = framed({"names": list(K1.names), "functions": list(K1.names)})
    right = framed({"value": 1, "changed": []})  # right for the first question, and for no other
    for raw in (names + right * 50, b"\xff\xff\xff\xff", framed([1]), framed({"value": 1}), framed({"passed": True})):
        grade = grade_in(sandbox, K1, f"import os\nos.write(3, {raw!r})\n")
        assert not grade.passed
        assert failures(grade)
    values = (
        *({"tensor": ["float32", [10**9], ""]}, {"tensor": ["float32", [-1], ""]}, {"tensor": ["bool", [1], "Ag=="]}),
        *({"call": "0"}, {"bool": 3}, {"dict": [[{"list": []}, 1]]}, {"float": "one"}, [1], {}),
    )
    for reply in (*({"value": value} for value in values), {"error": {"kind": 1}}, {"callback": "7", "args": []}):
        raw = names + framed({"changed": [], **reply}) * 10
        grade = grade_in(sandbox, K1, f"import os\nos.write(3, {raw!r})\n")
        assert not grade.passed
        assert failures(grade)


def test_a_grader_patched_from_within_decides_nothing(sandbox):
    code = "import sys\nsys.modules['messages'].pack = lambda value, depth=0: True\n"
    assert not grade_code(sandbox, code).passed
    assert not grade_code(sandbox, "import os\nos.close(3)\n").passed


# ---- other processes, the network, files


FORKS = """
import os
made = 0
for _ in range(20):  # bounded: a bomb that would go off only once
    try:
        pid = os.fork()
    except OSError:
        continue
    if pid == 0:
        os._exit(0)
    made += 1
print("made", made)
"""


def test_forks_are_refused(sandbox):
    assert grade_code(sandbox, FORKS).output == "made 0\n"


@LINUX
def test_forks_are_refused_by_the_kernel(sandbox):
    grade = grade_code(sandbox, FORKS, without=("audit hook",))
    assert grade.output == "made 0\n"
    assert "seccomp" in grade.held
    assert children(sandbox) == []


@LINUX
def test_forks_without_seccomp_die_with_the_rest(sandbox):
    """The last line: whatever was started is in the group that is killed."""
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n"
    grade = grade_code(sandbox, code, without=("audit hook", "seccomp", "limits"))
    assert grade.passed
    until(lambda: living(sandbox._process.pid) == [sandbox._process.pid])  # the sandbox itself, and nobody else


@pytest.mark.parametrize("without", [(), ("audit hook",)], ids=["hook", "kernel"])
def test_programs_and_threads_are_refused(sandbox, without):
    code = """
    import subprocess, threading, os
    for start in (lambda: subprocess.run(["true"]), lambda: os.execv("/bin/true", ["true"]),
                  lambda: threading.Thread(target=print).start()):
        try:
            start()
            print("started")
        except (OSError, RuntimeError):
            pass
    """
    if without and sys.platform != "linux":
        pytest.skip("held by the Linux kernel")
    assert grade_code(sandbox, code, without=without).output == ""


def test_what_is_refused_is_said(sandbox):
    assert "an answer may not start processes" in failures(grade_code(sandbox, "import os; os.system('true')\n"))
    assert "there is no network" in failures(grade_code(sandbox, "import socket; socket.socket()\n"))


@LINUX
@pytest.mark.parametrize(
    "without",
    [(), ("audit hook",), ("seccomp", "network namespace"), ("audit hook", "seccomp")],
    ids=["all", "kernel", "hook", "namespace"],
)
def test_the_network_cannot_be_reached(sandbox, without):
    """A listener on this machine gets no caller, whichever of the guards stand."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        code = f"""
        import socket
        try:
            socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 1)
            print("reached")
        except OSError:
            print("refused")
        """
        grade = grade_code(sandbox, code, without=without)
        if without == ("audit hook", "seccomp") and "network namespace" not in grade.held:
            pytest.skip("this system gives no network of its own to a plain process")
        assert grade.output == "refused\n"
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("without", [(), ("audit hook",), ("landlock",)], ids=["all", "kernel", "hook"])
def test_files_are_written_in_the_working_folder_only(sandbox, tmp_path, without):
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    code = f"""
    import os
    open("mine", "w").write("fine")
    print(open("mine").read())
    for deed in (lambda: open({str(victim)!r}, "w"), lambda: open({str(tmp_path / "new")!r}, "x"),
                 lambda: os.remove({str(victim)!r}), lambda: os.mkdir({str(tmp_path / "folder")!r}),
                 lambda: os.rename({str(victim)!r}, "stolen")):
        try:
            deed()
            print("done")
        except OSError:
            pass
    """
    grade = grade_code(sandbox, code, without=without)
    if without == ("audit hook",) and "landlock" not in grade.held:
        pytest.skip("no Landlock here")
    assert grade.output == "fine\n"
    assert victim.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [victim]


@LINUX
def test_files_of_others_are_not_read(sandbox, tmp_path):
    (tmp_path / "key").write_text("hunter2")
    grade = grade_code(sandbox, f"print(open({str(tmp_path / 'key')!r}).read())\n")
    if "landlock" not in grade.held:
        pytest.skip("no Landlock here")
    assert "PermissionError" in failures(grade)
    assert "hunter2" not in grade.output


def test_the_environment_is_clean_and_the_folder_goes_away(sandbox):
    grade = grade_code(sandbox, "import os\nprint(os.getcwd())\nprint(sorted(os.environ))\n")
    folder, names = grade.output.splitlines()
    assert "SECRET_OF_THE_GRADER" not in names
    assert not Path(folder).exists()


def test_large_files_are_refused(sandbox):
    code = "f = open('big', 'wb')\nfor _ in range(40): f.write(bytes(2**20)); f.flush()\n"
    assert "raises OSError" in failures(grade_code(sandbox, code))


@LINUX
@pytest.mark.parametrize("without", [(), ("audit hook",)], ids=["hook", "kernel"])
def test_the_sandbox_cannot_be_killed_nor_the_limits_raised(sandbox, without):
    code = """
    import os, resource, signal
    for deed in (lambda: os.kill(os.getppid(), signal.SIGKILL), lambda: os.killpg(os.getpgid(os.getppid()), 9),
                 lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
                 lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))):
        try:
            deed()
            print("done")
        except (OSError, ValueError):
            pass
    """
    assert grade_code(sandbox, code, without=without).output == ""
    assert grade_code(sandbox, "").passed  # the sandbox still stands


def test_a_sandbox_that_is_gone_says_so():
    with CodeSandbox() as sandbox:
        sandbox._process.kill()
        sandbox._process.wait()
        with pytest.raises(Refused, match="open another"):
            grade_code(sandbox, "")


def test_every_layer_is_named(sandbox):
    held = grade_code(sandbox, "").held
    assert {"limits", "audit hook"} <= set(held)
    if sys.platform == "linux":
        assert "seccomp" in held


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_well_formed(machine):
    """Jumps stay within the program, and it ends with a verdict."""
    raw = restrictions.program(machine, 4321)
    steps = [struct.unpack("HBBI", raw[i : i + 8]) for i in range(0, len(raw), 8)]
    assert len(steps) < 4096
    for i, (code, yes, no, _) in enumerate(steps):
        if code in (restrictions.EQUAL, restrictions.AT_LEAST):
            assert i + 1 + max(yes, no) < len(steps)
    assert steps[-1] == (restrictions.RETURN, 0, 0, restrictions.ALLOW)
    refused = {step[3] for step, then in pairwise(steps) if then[3] == restrictions.REFUSE}
    column = restrictions.MACHINES[machine][0]
    assert {numbers[column] for numbers in restrictions.REFUSED.values()} - {None} <= refused


# ---- files as they are handed in


def test_a_file_of_ten_megabytes(tmp_path):
    path = tmp_path / "big.py"
    path.write_text(K1.answer + "#" * 10**7)
    found = grade(path)
    assert (found.tag, found.passed) == ("K1", False)
    assert f"more than {MOST_BYTES // 1024} kB" in failures(found)
    assert grade(path.read_text()).checks == found.checks


@pytest.mark.parametrize(
    ("source", "tag", "words"),
    [
        ("x = 1\n", None, "names no exercise"),
        ("", None, "names no exercise"),
        ("# vantage exercise Z9\n", None, "no exercise is called 'Z9'"),
        (K1.answer, "K2", "says it is exercise K1, and K2 was asked for"),
        (Path("/no/such/file.py"), None, "cannot be read"),
        (Path("/"), None, "cannot be read"),
    ],
)
def test_files_that_cannot_be_graded(source, tag, words):
    with pytest.raises(BadInput, match=words):
        grade(source, tag=tag)


@pytest.mark.parametrize("bad", [{"seconds": 0}, {"seconds": float("nan")}, {"memory": 4}])
def test_limits_that_make_no_sense(bad):
    with pytest.raises(BadInput):
        grade(K1.answer, **bad)


@pytest.mark.sampled
def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes(b"# \xe9\n" + K1.answer.encode())
    assert grade(path, tag="K1").passed  # the character is lost, nothing else
