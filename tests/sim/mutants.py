#!/usr/bin/env python3
"""Plants bugs in copies of the session's sources and says which the simulator finds.

Each mutant is one small edit. It is built by plain g++ beside an include tree of
symbolic links, never in the tree itself, and run for up to --schedules schedules; the
first seed that fails is its catch. A survivor is reported, and makes the exit code 1.

    tests/sim/mutants.py [--schedules N] [--only NAME] [--jobs N]
"""
import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROOMS = {"allocator": "allocator"} | {r: f"transport/{r}" for r in ("api", "base", "proto", "wire")}
FLAGS = ["-std=c++20", "-O1", "-w"]

# Name, what is there (once in all of transport/proto), what is there instead.
MUTANTS = [
    ("credit_not_checked", "bool credit = sent_messages_ < credit_messages_ && (!inline", "bool credit = sent_messages_ <= credit_messages_ && (!inline"),
    ("credit_never_granted", "send_control(wire::Credit{", "if (consumed_messages_ > 3) send_control(wire::Credit{"),
    ("send_completed_before_pushed", "  if (op->in_flight > 0) return;\n", ""),
    ("queue_reversed", "  op->state = OperationState::kQueued;\n  queued_.push_back(op);",
     "  op->state = OperationState::kQueued;\n  op->next = queued_.first; op->previous = nullptr; op->list = &queued_;\n"
     "  (queued_.first ? queued_.first->previous : queued_.last) = op; queued_.first = op;"),
    ("answers_wait_for_credit", "bool in_turn = queued_.empty() || (", "bool in_turn = queued_.empty() || false && ("),
    ("pushed_chunk_skips_a_byte", "  op->moved += gathered;\n  op->in_flight", "  op->moved += gathered + (op->moved == 16);\n  op->in_flight"),
    ("writable_forgets_to_wake", "  blocked_ = false;\n  host_->activate(*this);", "  blocked_ = false;"),
    ("release_never_sent", "  send_control(releases_);\n", "  if (releases_.count > 1) send_control(releases_);\n"),
    ("loan_not_kept", "op->loaned = offer.segment_count > 0;", "op->loaned = offer.segment_count > 1;"),
    ("unexpected_consumed_twice", "  bool report = message->report;\n  unexpected_.erase(message);", "  bool report = message->report;\n  if (op->total != 3) unexpected_.erase(message);"),
    ("unexpected_not_freed_on_cancel", "    unexpected_.erase(message);\n    note_consumed(1, 0);\n    send_done(cancel.id", "    note_consumed(1, 0);\n    send_done(cancel.id"),
    ("small_receive_taken", "if (capacity >= total) [[likely]] return op;", "if (capacity + 1 >= total) return op;"),
    ("done_before_the_last_byte", "if (op->moved == op->total) finish_incoming(op, Status());\n  return Status();",
     "if (op->moved + 1 >= op->total) finish_incoming(op, Status());\n  return Status();"),
    ("placed_ignores_end_of_operation", "if (op == nullptr || op->state != OperationState::kPlacing) return Status();", "if (op == nullptr) return Status();"),
    ("pull_ignores_buffer_offset", "std::memcpy(buffer.data() + into_skip, op->runs", "std::memcpy(buffer.data(), op->runs"),
    ("cancel_of_want_ignored", "if (op == nullptr || op->kind != kind || op->state != OperationState::kPosted) {", "if (op == nullptr || op->kind != kind) {"),
    ("supply_of_other_layout_taken", "!offer.layout.is_compact() || !ours.same_layout(offer.layout)", "!offer.layout.is_compact() || ours.span_bytes() < offer.total"),
    ("deadline_missed_by_the_timer", "    next = std::min(next, op.deadline);\n", ""),
    ("offered_send_says_cancelled", "  bool unknown = offered && (op->kind", "  bool unknown = false && (op->kind"),
    ("lost_connection_says_not_delivered", "    if (sending && told) {", "    if (sending && told && op.total > 64) {"),
    ("loans_not_quarantined", "for (Tensor& tensor : op.tensors) link_->quarantine(tensor.storage());", "(void)op;"),
    ("completed_again_on_close", "bool over = op.internal || op.state == OperationState::kReady || op.state", "bool over = op.internal || op.state"),
    ("bye_not_answered", "return link_dead_ || (bye_sent_ && bye_received_", "return link_dead_ || (bye_sent_ && !bye_received_"),
    ("revoke_is_no_fence", "    if (!write && !read) return;\n", "    if (!read) return;\n"),
    ("ids_are_reused", "    op->id += uint64_t{1} << 32;\n", "    if (op->id < uint64_t{1} << 32) op->id += uint64_t{1} << 32;\n"),
    ("slot_leaked", "    --used_;\n  }\n  void reuse", "    if (op->match.mask != 0) --used_;\n  }\n  void reuse"),
    ("grant_rights_ignored", "if (!allowed || grant.epoch != epoch)", "if (grant.epoch != epoch)"),
    ("view_drop_not_told", "    pool->owner_->view_ended(offer_id);\n", "    if (offer_id % 5 != 0) pool->owner_->view_ended(offer_id);\n"),
]


def sources():
    found = []
    for folder in ROOMS.values():
        found += sorted(p for p in (ROOT / folder).glob("*.cc") if not p.name.endswith("_test.cc"))
    return found + sorted(p for p in (ROOT / "tests/sim").glob("*.cc") if not p.name.endswith("_test.cc"))


def include_tree(folder, proto):
    """sluice/ROOM -> the tree, except proto -> `proto`."""
    tree = folder / "sluice"
    tree.mkdir(parents=True)
    for name, path in ROOMS.items():
        (tree / name).symlink_to(proto if name == "proto" else ROOT / path)
    return ["-I", str(folder), "-I", str(ROOT)]


def compile_one(source, out, includes):
    subprocess.run(["g++", *FLAGS, *includes, "-c", str(source), "-o", str(out)], check=True)


def build_base(work, jobs):
    includes = include_tree(work / "base", ROOT / "transport/proto")
    objects = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = []
        for source in sources():
            objects[source] = work / "base" / (str(source.relative_to(ROOT)).replace("/", "_") + ".o")
            waiting.append(pool.submit(compile_one, source, objects[source], includes))
        for each in waiting:
            each.result()
    return objects


def try_mutant(mutant, work, base, schedules):
    """Returns "caught by seed N: why", "survived", or what went wrong with it."""
    name, old, new = mutant
    folder = work / name
    proto = folder / "proto"
    proto.mkdir(parents=True)
    for path in (ROOT / "transport/proto").iterdir():
        (proto / path.name).write_bytes(path.read_bytes())
    places = [path for path in proto.iterdir() for _ in range(path.read_text().count(old))]
    if len(places) != 1:
        return f"does not apply: its place is there {len(places)} times"
    file = places[0].name
    places[0].write_text(places[0].read_text().replace(old, new))
    includes = include_tree(folder / "inc", proto)
    objects = []
    for source, made in base.items():
        in_proto = source.parent == ROOT / "transport/proto"
        # Layouts do not change: a mutated header matters where its code is inlined.
        stale = in_proto and (source.name == file or file.endswith(".h"))
        if not stale:
            objects.append(made)
            continue
        out = folder / (source.name + ".o")
        compile_one(proto / source.name, out, includes)
        objects.append(out)
    program = folder / "simulate"
    subprocess.run(["g++", *map(str, objects), "-o", str(program)], check=True)
    try:
        run = subprocess.run([str(program), "--schedules", str(schedules), "--stop-at-first"], capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return "caught: never ends"
    if run.returncode == 0:
        return "survived"
    seed = re.search(r"^seed (\d+): (.*)$", run.stdout, re.M)
    if seed:
        return f"caught by seed {seed[1]}: {seed[2][:90]}"
    return f"caught: the process ended with {run.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=20000)
    parser.add_argument("--only", help="a part of a mutant's name")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if arguments.only is None or arguments.only in m[0]]
    with tempfile.TemporaryDirectory() as place:
        work = pathlib.Path(place)
        base = build_base(work, arguments.jobs)
        # Unplanted, the same schedules must pass: else "caught" means nothing.
        clean = work / "clean"
        subprocess.run(["g++", *map(str, base.values()), "-o", str(clean)], check=True)
        if subprocess.run([str(clean), "--schedules", str(arguments.schedules)], stdout=subprocess.DEVNULL).returncode != 0:
            print("the sources fail without any mutant")
            return 1
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            verdicts = list(pool.map(lambda m: try_mutant(m, work, base, arguments.schedules), chosen))
    caught = 0
    for mutant, verdict in zip(chosen, verdicts):
        caught += verdict.startswith("caught")
        print(f"{mutant[0]:36} {verdict}")
    print(f"{caught} of {len(chosen)} caught within {arguments.schedules} schedules")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
