"""A Python for tests that has imported torch already: `import torch` is most of what a short test
costs.

call(PYTHON, ARGUMENTS) does what `PYTHON ARGUMENTS...` does, in a fork of a process that has
imported torch, DTensor and pipelines, and nothing of distgrad: `PYTHON warm_python.py --serve
SOCKET`, which tools/test starts.

Where WARM_PYTHON names no such socket, PYTHON itself does it, and so it does what a fork
would not see alike: options of the interpreter, variables that it, torch or the dynamic linker
reads, a sandbox.

The fork has the descriptors, the directory, the environment, the limits and the network of this
process, its session or group if this process leads one, and a parent that os.getppid() names. It
gets the signals that this process gets, and is killed when this one is. This process ends as the
fork does.
"""

import array
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import sys

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
              signal.SIGUSR2)
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_HIGH = 700  # descriptors from here on are the machinery's
_NAMESPACES = {"user": 0x10000000, "net": 0x40000000}
_MESSAGE_BYTES = 8 << 20
# torch, the interpreter or the linker reads these when it is loaded,
_READ_EARLY = ("LD_", "PYTHON", "TORCH_", "ATEN_", "CUDA_")
# but for these; torchrun sets the last, which is read when a group of NCCL is made.
_READ_HERE = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED",
              "TORCH_NCCL_ASYNC_ERROR_HANDLING")


def _read_early(environment):
    return {name: value for name, value in environment.items()
            if name.startswith(_READ_EARLY) and name not in _READ_HERE}


# ---- in the process that is called


def _needs_the_real_one(arguments):
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-c", "-m")):
        return True
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    return status.get("NoNewPrivs") == "1" or status.get("Seccomp") != "0"


def _connected():
    path = os.environ.get("WARM_PYTHON")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
    try:
        connection.connect(path)
        return connection
    except (OSError, TypeError):
        return None


def _descriptors():
    listed = os.listdir("/proc/self/fd")
    found = []
    for number in map(int, listed):
        try:
            fcntl.fcntl(number, fcntl.F_GETFD)
            found.append(number)
        except OSError:  # the folder's own
            pass
    return found


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def call(python, arguments):
    given = _descriptors()
    connection = None
    if not _needs_the_real_one(arguments) and max(given) < _HIGH:
        connection = _connected()
    if connection is None:
        os.execv(python, [python, *arguments])
    life, end_of_life = os.pipe()
    child = _Child()
    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, child.signal)
    request = {
        "arguments": arguments, "executable": os.path.abspath(sys.argv[0]), "cwd": os.getcwd(),
        "environment": dict(os.environ), "pid": os.getpid(), "parent": os.getppid(),
        "descriptors": given, "umask": _umask(),
        "leads": "session" if os.getsid(0) == os.getpid() else
                 "group" if os.getpgid(0) == os.getpid() else "nothing",
        "ignored": [number for number in range(1, 32)
                    if signal.getsignal(number) is signal.SIG_IGN],
    }
    passed = array.array("i", [life, *given])
    connection.sendmsg([json.dumps(request).encode()],
                       [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    if not child.is_born(connection):
        os.execv(python, [python, *arguments])
    for number in {life, *given}:  # so that only the fork holds its pipes
        os.close(number)
    child.end_as_it_does(connection)


class _Child:
    """The fork, as seen by the process that was called."""

    def __init__(self):
        self._pid, self._early = None, []

    def signal(self, number, _):
        if self._pid is None:
            self._early.append(number)
            return
        try:
            os.kill(self._pid, number)
        except ProcessLookupError:
            pass

    def is_born(self, connection):
        born = connection.recv(64)
        if born:
            self._pid = int(born)
            for early in self._early:
                self.signal(early, None)
        return bool(born)

    def end_as_it_does(self, connection):
        status = connection.recv(64)
        if not status:
            os._exit(70)  # the server is gone
        _end_with(int(status))


def _end_with(status):
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


# ---- in the server


def _serve(path):
    """Returns in each fork, with its request."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)  # callers wait from here on
    listener.setblocking(False)

    import torch.distributed.fsdp  # noqa: F401
    import torch.distributed.pipelining  # noqa: F401
    import torch.distributed.tensor.parallel  # noqa: F401

    gc.collect()
    gc.freeze()  # collections in forks neither look at what torch made nor copy its pages
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    asking, early = {}, _read_early(os.environ)
    while True:
        ready, _, _ = select.select([listener, reader], [], [])
        try:
            os.read(reader, 4096)
        except BlockingIOError:
            pass
        _reap(asking)
        if listener in ready:
            connection, _ = listener.accept()
            request, descriptors = _received(connection)
            if request is None or _read_early(request["environment"]) != early:
                connection.close()
                for number in descriptors:
                    os.close(number)
                continue
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in [listener, connection, *asking.values()]:
                    other.close()
                os.close(reader)
                os.close(writer)
                return request, descriptors
            for number in descriptors:
                os.close(number)
            asking[child] = connection
            _tell(connection, child)


def _reap(asking):
    while asking:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        connection = asking.pop(pid)
        _tell(connection, status)
        connection.close()


def _tell(connection, number):
    try:
        connection.send(str(number).encode())
    except OSError:  # it was killed
        pass


def _received(connection):
    connection.settimeout(5)
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 250)
    except OSError:
        return None, []
    return (json.loads(data), descriptors) if data else (None, [])


# ---- in a fork of it


def _become(request, descriptors):
    import ctypes

    libc = ctypes.CDLL(None)
    caller = request["pid"]
    life, *given = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _HIGH) for number in descriptors]
    os.closerange(0, _HIGH)
    for source, number in zip(given, request["descriptors"]):
        os.dup2(source, number)
        os.close(source)
    _die_with(life)
    for kind, flag in _NAMESPACES.items():
        theirs = f"/proc/{caller}/ns/{kind}"
        if os.readlink(theirs) != os.readlink(f"/proc/self/ns/{kind}"):
            namespace = os.open(theirs, os.O_RDONLY)
            libc.setns(namespace, flag)
            os.close(namespace)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    if request["leads"] == "session":
        os.setsid()
    else:
        os.setpgid(0, 0)
    for limit in _LIMITS:
        resource.setrlimit(limit, resource.prlimit(caller, limit))
    with open(f"/proc/{caller}/oom_score_adj") as file, \
            open("/proc/self/oom_score_adj", "w") as mine:
        mine.write(file.read())
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN if number in request["ignored"] else
                          signal.default_int_handler if number == signal.SIGINT else
                          signal.SIG_DFL)
    _set_environment(request["environment"])
    server, real = os.getppid(), os.getppid
    os.getppid = lambda: request["parent"] if real() == server else real()


def _die_with(life):
    """SIGKILL when the other end of this pipe closes."""
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        if os.read(life, 1) == b"":
            os._exit(1)  # it had died before
    except BlockingIOError:
        pass


def _set_environment(environment):
    import tempfile

    import torch

    before = os.environ.get("OMP_NUM_THREADS")
    os.environ.clear()
    os.environ.update(environment)
    threads = environment.get("OMP_NUM_THREADS")
    if threads != before:
        torch.set_num_threads(int(threads) if threads else len(os.sched_getaffinity(0)))
    tempfile.tempdir = None  # asked for once, of TMPDIR
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))


def _open_streams():
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            stream = open(number, mode, closefd=False, encoding="utf-8",
                          errors="backslashreplace" if number == 2 else "strict")
        except OSError:
            stream = None
        if stream is not None and mode == "w":
            stream.reconfigure(write_through=unbuffered,
                               line_buffering=unbuffered or number == 2 or os.isatty(number))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(request):
    """A function that runs the program as the interpreter would."""
    import runpy
    import types

    kind, *rest = request["arguments"]
    sys.executable = request["executable"]
    sys.orig_argv[:] = [request["executable"], *request["arguments"]]
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)
             if path]
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = paths + [path for path in sys.path if path != own]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if kind == "-m":
        sys.argv[:] = ["-m", *rest[1:]]
        sys.path.insert(0, os.getcwd())
        return lambda: runpy._run_module_as_main(rest[0])
    if kind == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        code = compile(rest[0] + "\n", "<string>", "exec", dont_inherit=True)
    else:
        sys.argv[:] = [kind, *rest]
        sys.path.insert(0, os.path.dirname(os.path.realpath(kind)))
        main.__file__ = os.path.abspath(kind)
        import importlib.machinery
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
        with open(kind, "rb") as file:
            code = compile(file.read(), main.__file__, "exec", dont_inherit=True)
    return lambda: exec(code, main.__dict__)


def _exit_code(run):
    """The interpreter's exit status. An exception is shown as the interpreter shows it, without
    frames of this file."""
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xff
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(code):
    """Without taking torch apart object by object, which takes as long as half an import."""
    import atexit
    import threading

    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if sys.argv[1:2] == ["--serve"]:
    _request, _given = _serve(sys.argv[2])
    _become(_request, _given)
    _open_streams()
    _end(_exit_code(_run(_request)))
