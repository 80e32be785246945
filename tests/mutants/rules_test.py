#!/usr/bin/env python3
"""The rules of tests/mutants do what they say, leave out what cannot matter, and the runner tells what is noticed from what is not."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import build
import rules
import run

FUNCTION = """#include <x.h>
namespace a {
Counter refused("a.refused");
constexpr int kMost = 8;
static_assert(kMost < 9);
template <typename T>
class Thing {
 public:
  Thing() : count_(0) {}
  int first = 1;
};
// if (count < 7) return;
Status Thing::take(std::vector<int>& from, size_t count) {
  if (count > kMost) return invalid("count < 8");
  int got = 0;
  if (int e = ask(count); e != 0) {
    return broken(e);
  }
  got = from.size() + 1;
  from.pop_back();
  refused.add();
  log(LogLevel::kInfo, "took " + std::to_string(count == 1));
  flag_.store(true, std::memory_order_release);
  SLUICE_RETURN_IF_ERROR(check(got));
  if (auto* other = find(count)) return other->take(from, count);
  return Status();
}
void Thing::drop() {
  first = 0;
  if (first == 0) {
    last();
  } else {
    next();
  }
  again();
}
}
"""


def edits(text, rule, is_c=False):
    found = rules.sites(text, is_c)[rule]
    return [(text[s.at:s.end], s.instead) for s in found]


class Rules(unittest.TestCase):
    def test_comparisons_are_swapped_in_code_alone(self):
        self.assertEqual(edits(FUNCTION, "compare"), [(">", ">="), ("!=", "=="), ("==", "!=")])

    def test_calls_and_assignments_are_dropped_and_neither_declarations_nor_what_is_logged(self):
        self.assertEqual([old for old, _ in edits(FUNCTION, "drop")],
                         ["got = from.size() + 1;", "from.pop_back();", "flag_.store(true, std::memory_order_release);",
                          "SLUICE_RETURN_IF_ERROR(check(got));", "first = 0;", "last();", "next();", "again();"])

    def test_orders_are_weakened(self):
        self.assertEqual(edits(FUNCTION, "order"), [("memory_order_release", "memory_order_relaxed")])
        text = "void f() {\n  a.store(1);\n  b = a.load();\n  std::atomic_thread_fence(std::memory_order_seq_cst);\n}\n"
        self.assertEqual(edits(text, "order"), [("", ", std::memory_order_relaxed"), ("", "std::memory_order_relaxed"),
                                                ("std::atomic_thread_fence(std::memory_order_seq_cst);", ";"),
                                                ("memory_order_seq_cst", "memory_order_relaxed")])

    def test_checks_are_skipped_and_turned_round(self):
        found = edits(FUNCTION, "check")
        self.assertIn(("if (count > kMost) return invalid(\"count < 8\");", ";"), found)
        self.assertIn(("count > kMost", "!(count > kMost)"), found)
        self.assertIn(("e != 0", "!(e != 0)"), found)
        self.assertIn(("if (int e = ask(count); e != 0) {\n    return broken(e);\n  }", ";"), found)
        self.assertIn(("SLUICE_RETURN_IF_ERROR", "(void)"), found)
        self.assertIn(("first == 0", "!(first == 0)"), found)
        self.assertFalse([old for old, _ in found if "other" in old and "return" not in old])  # declares: nothing to turn round

    def test_functions_return_early(self):
        found = edits(FUNCTION, "early")
        self.assertEqual(found, [("", " return {};"), ("", " return;"), ("", "return; ")])
        self.assertEqual(edits("int f(void)\n{\n\treturn g(1);\n}\n", "early", is_c=True), [("", " return 0;")])

    def test_bounds_are_off_by_one(self):
        self.assertEqual(edits(FUNCTION, "bound"), [("kMost", "kMost + 1"), ("+ 1", "")])

    def test_what_the_bugs_make_is_what_the_rules_say(self):
        text = "void f(int a) {\n  if (a < 3) g();\n}\n"
        (site,) = rules.sites(text)["compare"]
        self.assertEqual(site.apply(text), text.replace("<", "<="))

    def test_a_key_stays_when_the_place_moves_and_changes_when_the_line_does(self):
        text = "void f(int a) {\n  if (a < 3) g();\n}\n"
        (site,), = [rules.sites(text)["compare"]]
        moved = "\n\n" + text
        (other,), = [rules.sites(moved)["compare"]]
        self.assertEqual(site.key("f.cc", text), other.key("f.cc", moved))
        self.assertNotEqual(site.key("f.cc", text), site.key("g.cc", text))
        changed = text.replace("g()", "h()")
        (third,), = [rules.sites(changed)["compare"]]
        self.assertNotEqual(site.key("f.cc", text), third.key("f.cc", changed))

    def test_texts_comments_and_raw_texts_hold_no_code(self):
        text = 'void f() {\n  a("if (x) return; b < c");\n  /* c < d; */\n  e(R"(f < g)");\n  h(\'"\', "<");\n}\n'
        found = rules.sites(text)
        self.assertEqual(found["compare"], [])
        self.assertEqual(len(found["drop"]), 3)

    def test_the_seed_alone_decides_what_is_planted(self):
        with tempfile.TemporaryDirectory() as root:
            for room in ("allocator", "transport/tcp"):
                (pathlib.Path(root) / room).mkdir(parents=True)
                (pathlib.Path(root) / room / "thing.cc").write_text(FUNCTION)
                (pathlib.Path(root) / room / "thing_test.cc").write_text(FUNCTION)
            subprocess.run(["git", "init", "-q"], cwd=root, check=True)
            first, again, other = ([(mutant.file, mutant.key) for mutant in run.choose(root, seed)] for seed in (5, 5, 6))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertEqual(sorted(first), sorted(other))
        self.assertEqual({file for file, _ in first}, {"allocator/thing.cc", "transport/tcp/thing.cc"})
        # The rooms in turn, and the rules in each.
        self.assertEqual([file for file, _ in first[:4]], ["allocator/thing.cc", "transport/tcp/thing.cc"] * 2)


PRODUCT = """int most(int a, int b);
int most(int a, int b) {
  if (a == b) return a;
  if (a > b) return a;
  while (a < 0 - 1000000) a = a;
  return b;
}
"""
TEST = """int most(int a, int b);
int main() { return most(1, 2) == 2 && most(2, 1) == 2 && most(3, 3) == 3 ? 0 : 1; }
"""


class Runner(unittest.TestCase):
    """On a tree of two files, built and run for real."""

    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        root = pathlib.Path(self.place.name) / "root"
        root.mkdir()
        (root / "most.cc").write_text(PRODUCT)
        (root / "most_test.cc").write_text(TEST)
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)
        folder = pathlib.Path(self.place.name) / "tree"
        folder.mkdir()
        self.tree = build.Tree(root, folder, {"test": build.Program(["most_test.cc"])}, ["most.cc"], pathlib.Path(self.place.name) / "cache", 1)
        self.tree.build(["test"])
        self.trial = run.Trial(self.tree, lambda file: ["test"])

    def tearDown(self):
        self.place.cleanup()

    def verdict(self, old, instead):
        at = PRODUCT.index(old)
        site = rules.Site("compare", at, at + len(old), instead)
        verdict = self.trial.attempt(run.Mutant("most.cc", PRODUCT, site))[0]
        self.assertEqual((self.tree.folder / "most.cc").read_text(), PRODUCT)
        return verdict

    def test_verdicts(self):
        self.assertEqual(self.verdict("a > b", "a < b"), "caught")
        self.assertEqual(self.verdict("a == b", "a != b"), "caught")
        # Nothing depends on it: listed.
        self.assertEqual(self.verdict("a == b", "a == 7 && b == 7"), "survived")
        self.assertEqual(self.verdict("if (a == b) return a;", "if ((a == b)) return (a);"), "same object")
        self.assertEqual(self.verdict("if (a > b) return a;", "if (a > b) return nothing;"), "does not compile")
        # The same bug in other words counts once.
        self.assertEqual(self.verdict("a > b", "b > a"), "same object")

    def test_a_test_that_hangs_has_noticed(self):
        build.SECONDS_AT_LEAST, before = 1, build.SECONDS_AT_LEAST
        try:
            self.assertEqual(self.verdict("a > b", "[] { for (volatile int i = 0;; i = i) {} return true; }()"), "caught")
        finally:
            build.SECONDS_AT_LEAST = before


if __name__ == "__main__":
    unittest.main()
