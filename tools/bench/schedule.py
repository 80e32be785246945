"""Runs the questions: round after round over all of them, within the time there is, until done or
interrupted.

Breadth first: after one round of everything there is something to say about everything. Where
time is limited, no question and no command may take so much of it that the others get none, and of
what is left after the first round the shortest questions take theirs first: more of them get
rounds. Knows no experiment and no format. A round that was begun and not finished counts only if it
is a question's first: then the rows that did not run say why. A run may begin with the rounds of an
earlier one.
"""
import time

import compare
import judging
import question as catalogue

# A row that has never run is taken to last so long: most take 0.3 to 3 s.
GUESS_SECONDS = 1.0
# Of a limited time, a question's first round may take twice its even share of what is left, as long
# as half an even share of the whole remains for each of the others;
LARGEST_SHARE, KEPT_SHARE = 2.0, 0.5
# and a command may take so much: a program that hangs, as a bare one does that lost a frame, would
# take all of it.
COMMAND_SECONDS = 15.0
# Of rounds by the machine's state only those count in which two rows met the same one: for a
# verdict so many times the rounds are run at most.
MOST_BY_STATE = 3
NO_TIME, INTERRUPTED = "no time was left for it", "interrupted"


class Schedule:
    """`questions` by name. `progress(text, done, total, seconds_left)` is called before each
    command."""

    def __init__(
        self, questions, options, progress, run=compare.run_once, clock=time.monotonic, before=None,
        kept=lambda: None
    ):
        """`before`: rounds of an earlier run by question. `kept()` is called after each round."""
        self.questions, self.options, self.progress = questions, options, progress
        self.run_row, self.clock, self.kept = run, clock, kept
        self.before = {name: list((before or {}).get(name, [])) for name in questions}
        self.rounds = {name: list(self.before[name]) for name in questions}
        self.interrupted = self.out_of_time = False
        self.begun = clock()
        self.deadline = self.begun + options.seconds if options.seconds else None
        self._lasted = {}  # command -> seconds it took last
        self._done = self._done_before_round = 0
        self._judged = {}  # question -> (rounds, the targets that want more)

    def execute(self):
        """{name: rounds}. Returns early by an interrupt or the deadline, never by a failing
        command."""
        try:
            while not self._stopped() and self._one_turn():
                pass
        except KeyboardInterrupt:  # between two commands
            self.interrupted = True
        return self.rounds

    def _one_turn(self):
        """A round of every question that wants one and has the time; False if there is none."""
        waiting = [name for name in self.questions if self.wants_another(name) and self._fits(name)]
        if self.deadline is not None:
            waiting.sort(key=lambda name: self._round_seconds(name) if self.rounds[name] else 0.0)
        kept = 0.0
        if self.deadline is not None and waiting:
            kept = KEPT_SHARE * (self.deadline - self.clock()) / len(waiting)
        for at, name in enumerate(waiting):
            if not self._stopped() and self._fits(name):
                self._share = (
                    self.deadline
                    if self.rounds[name]
                    else self._share_of(name, len(waiting) - at, kept))
                self._one_round(name)
        return bool(waiting)

    def wants_another(self, name):
        """Rejected rounds are repeated, at most as many in one run as were asked for."""
        ran_now = self.rounds[name][len(self.before[name]):]
        counted = sum(not one["rejected"] for one in self.rounds[name])
        asked = self._asked(name)
        return counted < asked and len(ran_now) < 2 * asked

    def _asked(self, name):
        """Rounds. Where a judgement is asked for, more if some target has too few for one."""
        if not self._undecided(name):
            return self.options.rounds
        return judging.DECISIVE_ROUNDS * (MOST_BY_STATE if "gauge" in self.questions[name] else 1)

    def _undecided(self, name):
        """The targets that more rounds than were asked for may judge: those within 5 % of their
        bound."""
        rounds, question = self.rounds[name], self.questions[name]
        if (
            not self.options.judge
            or sum(not one["rejected"] for one in rounds) < self.options.rounds
        ):
            return []
        if self._judged.get(name, (0, []))[0] != len(rounds):
            metrics = {row["name"]: row["metric"] for row in question["rows"]}
            said = [
                (target, compare.judge(target, metrics[target["row"]], rounds))
                for target in question["targets"]]
            self._judged[name] = (
                len(rounds), [target for target, each in said if judging.wants_rounds(each)])
        return self._judged[name][1]

    def _stopped(self):
        return self.interrupted or self.out_of_time

    def _fits(self, name):
        """Whether another round would end in time; the first one is always tried."""
        if self.deadline is None or not self.rounds[name]:
            return True
        return self.clock() + self._round_seconds(name) < self.deadline

    def _share_of(self, name, questions_left, kept):
        """When this question, the next of so many, must be through; None if time is not limited."""
        if self.deadline is None:
            return None
        left = self.deadline - self.clock()
        shares = self.questions[name].get("shares", LARGEST_SHARE)
        return self.clock() + min(
            left * min(1.0, shares / questions_left), left - kept * (questions_left - 1))

    def _one_round(self, name):
        rows, so_far = self.questions[name]["rows"], self.rounds[name]
        self._label, self._done_before_round = (name, len(so_far) + 1), self._done
        undecided = self._undecided(name)
        only = (
            {row for target in undecided for row in catalogue.names_in(target)}
            if undecided
            else None)
        one = compare.run_round(
            rows, self.options.bin, len(so_far), self.options.max_steal, self._run, only,
            self.questions[name].get("gauge"))
        self.out_of_time = self.deadline is not None and self.clock() >= self.deadline
        if not self._stopped() or not so_far:
            so_far.append(one)
            self.kept()

    def _run(self, row, bin_folder):
        if self.interrupted or self._share_is_used():
            return compare.outcome(
                compare.ROW_MISSING, INTERRUPTED if self.interrupted else NO_TIME)
        name, number = self._label
        self.progress(f"{name}, round {number}: {row['name']}", self._done, *self._ahead())
        started = self.clock()
        try:
            ran = self.run_row(self._in_time(row), bin_folder)
        except KeyboardInterrupt:
            self.interrupted = True
            return compare.outcome(compare.ROW_MISSING, INTERRUPTED)
        self._lasted[tuple(row["command"])] = self.clock() - started
        self._done += 1
        if ran["state"] == compare.FAILED and self._share_is_used():
            return compare.outcome(compare.ROW_MISSING, NO_TIME)
        return ran

    def _share_is_used(self):
        return self._share is not None and self.clock() >= self._share

    def _in_time(self, row):
        if self._share is None:
            return row
        limit = min(
            row.get("limit_seconds", compare.LIMIT_SECONDS), COMMAND_SECONDS,
            self._share - self.clock())
        return dict(row, limit_seconds=max(limit, 0.1))

    def _round_seconds(self, name):
        commands = {tuple(row["command"]) for row in self.questions[name]["rows"]}
        lasted = [one["seconds"] for one in self.before[name] if one.get("seconds")]
        if lasted and not commands & set(self._lasted):
            return max(lasted)
        return sum(self._lasted.get(command, GUESS_SECONDS) for command in commands)

    def _ahead(self):
        """(commands in all, seconds left), as far as can be told: repeated rounds come on top."""
        commands = {
            name: len({tuple(row["command"]) for row in one["rows"]})
            for name, one in self.questions.items()}
        rounds_left = {
            name: max(self._asked(name) - len(self.rounds[name]), 0) for name in self.questions}
        total = self._done_before_round + sum(
            commands[name] * rounds_left[name] for name in self.questions)
        seconds = sum(self._round_seconds(name) * rounds_left[name] for name in self.questions)
        if self.deadline is not None:
            seconds = min(seconds, self.deadline - self.clock())
        return total, max(seconds, 0.0)
