"""One attack from beginning to end: a server, an honest client, and an attacker beside it.

Everything is a process that ends with this one. What a run found is a Run; judging is its check().
"""
import collections
import json
import os
import re
import resource
import select
import subprocess
import tempfile
import time

# Bounds on a hang, not on speed.
LIMIT_SECONDS = 90
ROUNDS_BESIDE = 12  # of the honest client, while an attack stays
ROUNDS_AFTER = 2
DESCRIPTORS = 1024  # what a process has where nobody changed it
FIRST_STEP = 1000  # of the keys of the client that works beside the attack
LEAST_KEYS = 65000  # names that the server can still publish afterwards, of 65,536
STRANGER = "127.0.0.66"
NO_EFFECT, HIT = 3, 4
# Of lines that differ in numbers only: refusals are counted, and said once for each peer, and once more when as many
# seconds have passed (LogThrottle).
MOST_LIKE_LINES = 4
SECONDS_BETWEEN_LINES = 10
# What counts that a peer's messages wait because they are too many and no operation needs them; attacks that are such messages.
HELD_BACK = {"tcp": "tcp.messages_held_back", "udp": "l2.messages_held_back", "l2": "l2.messages_held_back"}
TALK = ("ping_flood", "keys_flood")


class Failed(Exception):
    pass


def environment(**extra):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    kept.update(extra)
    return kept


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


class Process:
    """A program that is spoken to by lines."""

    def __init__(self, *command, within=(), limited=False, log="warning", more=None):
        self.errors = tempfile.TemporaryFile("w+")
        self.name = command[1] if len(command) > 1 else command[0]
        self.process = subprocess.Popen([*within, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        bufsize=0, preexec_fn=few_descriptors if limited else None, env=environment(SLUICE_LOG=log, **(more or {})))
        self.pending = b""

    def say(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            pass  # its end tells

    def line(self, seconds=LIMIT_SECONDS):
        """The next line that it prints; None at its end."""
        while b"\n" not in self.pending:
            ready, _, _ = select.select([self.process.stdout], [], [], seconds)
            if not ready:
                raise Failed(f"{self.name} says nothing for {seconds} s")
            got = os.read(self.process.stdout.fileno(), 65536)
            if not got:
                return None
            self.pending += got
        line, self.pending = self.pending.split(b"\n", 1)
        return line.decode()

    def line_within(self, seconds):
        """The same; "" if there is none by then."""
        if b"\n" not in self.pending and not select.select([self.process.stdout], [], [], max(seconds, 0))[0]:
            return ""
        return self.line()

    def said(self):
        self.errors.seek(0)
        return self.errors.read()

    def end(self):
        self.process.stdin.close()
        if self.process.poll() is None:
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


Run = collections.namedtuple("Run", "path attack attacker attacker_code worker audit log seconds")


def ask(process, line):
    process.say(line)
    answer = process.line()
    if answer is None:
        raise Failed(f"{process.name} has ended (code {process.process.wait()}): {process.said()[-2000:]}")
    return answer


def siege(programs, path, listen, attack, *, dose=1, seconds=20, source=STRANGER, at=((), ()), visits=True, reach=str):
    """Runs `attack` against a server at `listen`. `at`: commands that start a program where the server is, and where the others are.
    `visits`: somebody new has to get in while it goes on. `reach`: how the others say the server's address."""
    attacker, victim = programs
    began = time.monotonic()
    here, there = at
    running = []

    def start(*command, **options):
        running.append(Process(*command, **options))
        return running[-1]

    try:
        secret = os.urandom(8).hex()
        server = start(victim, "serve", listen, secret, within=here, limited=True)
        address = server.line()
        if address is None:
            raise Failed("the server did not start: " + server.said())
        address = reach(address)
        # What a first client leaves behind stays; everything later is compared with that.
        first = start(victim, "work", address, secret, "1", within=there)
        if first.line() != "working":
            raise Failed("without an attack: " + first.said())
        first.say("end")
        alone = json.loads(first.line())
        if alone["failed"]:
            raise Failed(f"without an attack: {alone['failed']}")
        ask(server, "audit")
        worker = start(victim, "work", address, secret, str(FIRST_STEP), *["visits"] * visits, within=there)
        if worker.line() != "working":
            raise Failed("without an attack, the second client: " + worker.said())
        enemy = start(attacker, path, attack, address, "--dose", str(dose), "--seconds", str(seconds), "--source", source, within=there)
        staying = enemy.line(seconds + LIMIT_SECONDS)
        if staying == "staying":
            beside(worker, ROUNDS_BESIDE)
            enemy.say("leave")
            staying = enemy.line()
        if staying is None:
            raise Failed("the attacker fell: " + enemy.said())
        code = enemy.process.wait(timeout=LIMIT_SECONDS)
        beside(worker, ROUNDS_AFTER)
        worker.say("end")
        report = worker.line()
        while report is not None and not report.startswith("{"):
            report = worker.line()
        if report is None:
            raise Failed("the honest client fell: " + worker.said())
        found = json.loads(ask(server, "audit"))
        found["keys"] = json.loads(ask(server, "keys"))
        return Run(path, attack, json.loads(staying), code, json.loads(report), found, server.said(), time.monotonic() - began)
    finally:
        for process in reversed(running):
            process.end()


def beside(worker, rounds):
    """Waits until the honest client did so many more rounds, or failed."""
    worker.say(f"more {rounds}")
    while True:
        line = worker.line()
        if line is None or line == "did":
            return
        if line.startswith("{"):
            worker.pending = line.encode() + b"\n" + worker.pending
            return


def alike(log):
    """(how often, line) of the log's most frequent line, numbers apart."""
    lines = collections.Counter(re.sub(r"0x[0-9a-f]+|[0-9]+", "N", line) for line in log.splitlines())
    line, often = lines.most_common(1)[0] if lines else ("", 0)
    return often, line


def faults(run):
    """What did not hold, as texts."""
    found = [f"honest operation: {text}" for text in run.worker["failed"]]
    if run.worker["rounds"] < ROUNDS_AFTER:
        found.append(f"the honest client did {run.worker['rounds']} rounds")
    if run.attacker_code == HIT:
        found.append(f"the attacker got what it must not get, {run.attacker['hits']} times: {run.attacker['notes']}")
    elif run.attacker_code == NO_EFFECT:
        found.append(f"the attack did not take place: {run.attacker['missing']}")
    elif run.attacker_code != 0:
        found.append(f"the attacker ended with {run.attacker_code}")
    often, line = alike(run.log)
    if often > MOST_LIKE_LINES + run.seconds // SECONDS_BETWEEN_LINES:
        found.append(f"the log has {often} times: {line}")
    if not run.audit["as_before"]:
        found.append(f"not as before: {differences(run.audit)}")
    if run.attack in TALK and run.path in HELD_BACK and not run.audit["counters"].get(HELD_BACK[run.path]):
        found.append("the attacker's messages, which no operation needs, had as much of the thread as they liked")
    if run.audit["keys"]["names"] < LEAST_KEYS:
        found.append(f"only {run.audit['keys']['names']} new keys: {run.audit['keys']['why']}")
    return found


def differences(audit):
    return {name: f"{audit['before'][name]} -> {after}" for name, after in audit["after"].items() if after != audit["before"][name]}
