"""The programs that take turns: each is started once, asked a line at a time, and answers in JSON."""
import json
import os
import platform
import shlex
import subprocess
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))


class PartnerFailed(Exception):
    """A partner could not be started, went away, or answered with an error."""


class Partner:
    """A process that answers requests on its standard input; pinned to `cores`, or to as many as it
    has threads. `can_check`: it also says whether the result of a case is right."""

    def __init__(self, name, command, threads, extra_environment=None, can_check=False, cores=None):
        self.name, self.can_check = name, can_check
        self.errors = tempfile.TemporaryFile(mode="w+")
        environment = {**os.environ, "HEADWISE_NUM_THREADS": str(threads),
                       **(extra_environment or {})}
        cores = cores or pick_cores(threads)
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                text=True, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, cores))
        except OSError as error:
            self.errors.close()
            raise PartnerFailed(f"{name}: {error}") from error

    def ask(self, request):
        """The answer to one line. Raises PartnerFailed where there is none."""
        self.send(request)
        return self.receive()

    def send(self, request):
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # receive() says why

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            raise PartnerFailed(f"{self.name} went away: {self.last_words()}")
        try:
            reply = json.loads(line)
        except ValueError as error:
            raise PartnerFailed(f"{self.name} said {line.strip()[:200]}") from error
        if "error" in reply:
            raise PartnerFailed(f"{self.name}: {reply['error']}")
        return reply

    def last_words(self):
        """The last line that it wrote to standard error."""
        self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if line.strip()]
        return lines[-1][:200] if lines else f"exit status {self.process.returncode}"

    def memory(self, field):
        """VmHWM or VmRSS in bytes, of it or the largest of the processes that it started."""
        return max(memory_of(pid, field) for pid in descendants(self.process.pid))

    def close(self):
        if not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Copies:
    """Partners of one thread, each on a core of its own, that do the same at the same time: what
    cores gain where none waits for another."""
    can_check = False

    def __init__(self, partners):
        self.partners, self.process = partners, partners[0].process

    def ask(self, request):
        """`seconds` is the time in which one of them would be done if all worked for it."""
        for partner in self.partners:
            partner.send(request)
        failures, replies = [], []
        for partner in self.partners:
            try:
                replies.append(partner.receive())
            except PartnerFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        return {**replies[0], "seconds": 1 / sum(1 / reply["seconds"] for reply in replies)}

    def close(self):
        for partner in self.partners:
            partner.close()


def machine():
    """What the figures were taken on."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
            name = names[0] if names else name
    except OSError:
        pass
    return {"processor": name, "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.release()}",
            "load": os.getloadavg()[0]}


def pick_cores(count):
    """Cores that this process may use; those that share a core with another come last."""
    first, second, seen = [], [], set()
    for core in sorted(os.sched_getaffinity(0)):
        try:
            with open(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") as file:
                siblings = file.read().strip()
        except OSError:
            siblings = str(core)
        (second if siblings in seen else first).append(core)
        seen.add(siblings)
    return (first + second)[:count]


def descendants(pid):
    found = [pid]
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            for child in file.read().split():
                found += descendants(int(child))
    except OSError:
        pass  # gone, or a kernel that does not say
    return found


def memory_of(pid, field):
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def has_avx512():
    try:
        with open("/proc/cpuinfo") as file:
            return "avx512f" in file.read()
    except OSError:
        return False


def blas_environment(threads):
    """OpenBLAS takes slower kernels where it does not know a processor, or where an environment says
    so: it is told which are the fastest here, for a rival is measured at its best."""
    environment = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads),
                   "MKL_NUM_THREADS": str(threads)}
    if has_avx512():
        environment["OPENBLAS_CORETYPE"] = "SkylakeX"
    return environment


def start_headwise(command, threads, seconds, name="headwise", openblas=True, cores=None):
    """`openblas` False: it does not load that library, whose memory would count as its own."""
    environment = blas_environment(threads)
    if not openblas:
        environment["HEADWISE_OPENBLAS"] = ""
    return Partner(name, shlex.split(command) + ["--turns", f"--seconds={seconds}"], threads,
                   environment, can_check=True, cores=cores)


def start_torch(threads, seconds):
    """PyTorch by the command in HEADWISE_TORCH, or python3. Raises PartnerFailed, saying why."""
    command = shlex.split(os.environ.get("HEADWISE_TORCH") or "python3")
    with open(os.path.join(FOLDER, "torch_attention.py")) as file:
        source = file.read()  # the command may run where this folder is not
    return Partner("PyTorch", command + ["-c", source, str(seconds)], threads,
                   {**blas_environment(threads), "PYTHONUNBUFFERED": "1"})


def start_torch_if_any(threads, seconds):
    """PyTorch and what it says of itself; or None, and why there is none."""
    torch = None
    try:
        torch = start_torch(threads, seconds)
        return torch, torch.ask("about")
    except PartnerFailed as failure:
        if torch is not None:
            torch.close()
        return None, {"absent": f"{failure}. HEADWISE_TORCH names the command of a Python with torch."}
