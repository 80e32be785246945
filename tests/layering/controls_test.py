#!/usr/bin/env python3
"""Each check catches what it is for: a small tree in which one rule at a time is broken."""
import os
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import checks  # noqa: E402

BASE_BUILD = """load("//tools/build:sluice.bzl", "sluice_cc_library")
sluice_cc_library(name = "word", srcs = ["word.cc"], hdrs = ["word.h"])
sluice_cc_library(name = "line", hdrs = ["line.h"], deps = [":word"])
"""
API_BUILD = """load("//tools/build:sluice.bzl", "sluice_cc_library", "sluice_cc_test")
sluice_cc_library(name = "page", srcs = ["page.cc"], hdrs = ["page.h"], deps = ["//transport/base:line"])
alias(name = "sheet", actual = ":page")
[cc_binary(name = n, srcs = [n + ".cc"], deps = [":sheet"]) for n in ["print"]]
sluice_cc_test(name = "page_test", srcs = ["page_test.cc"], deps = [":page"])
"""
TREE = {
    "WORKSPACE": "",
    "transport/base/BUILD": BASE_BUILD,
    "transport/base/word.h": "#pragma once\n#include <string>\ninline std::string word() { return {}; }\n",
    "transport/base/word.cc": "#include <sluice/base/word.h>\n",
    "transport/base/line.h": "#pragma once\n#include <sluice/base/word.h>\ninline auto line() { return word(); }\n",
    "transport/api/BUILD": API_BUILD,
    "transport/api/page.h": "#pragma once\n#include <sluice/base/line.h>\ninline auto page() { return line(); }\n",
    "transport/api/page.cc": '// mmap( and std::thread in a comment\n#include <sluice/api/page.h>\nconst char* t = "mmap(";\n',
    "transport/api/page_test.cc": "#include <sluice/api/page.h>\n#include <thread>\nstd::thread thread_of_a_test;\n",
    "transport/api/print.cc": '#include "transport/api/page.h"\nint main() {}\n',
    "tests/support/BUILD": 'cc_library(name = "catch_main", testonly = True, hdrs = ["skip.h"])\n',
    "tests/support/skip.h": "#pragma once\n",
}


class Controls(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="sluice-layering.")
        self.addCleanup(shutil.rmtree, self.root)
        for path, text in TREE.items():
            self.plant(path, text)
        os.makedirs(os.path.join(self.root, "tools/build"))
        for name in ("sluice.bzl", "rooms.bzl"):
            shutil.copy(os.path.join(checks.tree_root(), "tools/build", name), os.path.join(self.root, "tools/build"))
        self.plant("tools/build/BUILD", "")

    def plant(self, path, text, add=False):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a" if add else "w", encoding="ascii") as file:
            file.write(text)

    def found(self, check):
        return list(check(checks.House(self.root)))

    def catches(self, check, *expected):
        found = self.found(check)
        self.assertEqual(len(found), len(expected), found)
        for line, text in zip(found, expected):
            self.assertIn(text, line)

    def test_a_tree_without_a_fault_passes_every_check(self):
        for check in checks.CHECKS.values():
            self.assertEqual(self.found(check), [])

    def test_files_that_need_each_other(self):
        self.plant("kernel_compat/slp/slp_a.c", "void b(void);\nvoid a(void);\nvoid a(void) { b(); }\n")
        self.plant("kernel_compat/slp/slp_b.c", "void c(void);\nvoid b(void);\nvoid b(void) { c(); }\n")
        self.plant("kernel_compat/slp/slp_c.c", "void c(void);\nvoid c(void) {}\n")
        self.plant("kernel_compat/slp/slp_top.c", "void a(void);\nvoid top(void);\nvoid top(void) { a(); }\n")
        self.assertEqual(self.found(checks.cycles), [])
        self.plant("kernel_compat/slp/slp_c.c", "void a(void);\nvoid c(void);\nvoid c(void) { a(); }\n")
        self.catches(checks.cycles, "kernel_compat/slp: these need each other: slp_a.c, slp_b.c, slp_c.c")

    def test_files_of_the_module_that_need_each_other(self):
        self.plant("kernel_compat/module/sluice.h", "extern int sluice_count;\nstatic inline int sluice_counted(void)\n{\n\treturn sluice_count;\n}\n")
        self.plant("kernel_compat/module/sluice_a.c", '#include "sluice.h"\nint sluice_a(void)\n{\n\treturn sluice_counted();\n}\n')
        self.plant("kernel_compat/module/sluice_b.c", '#include "sluice.h"\nint sluice_count;\n/* sluice_a() is in a comment */\nstatic int sluice_b(void)\n{\n}\n')
        self.assertEqual(self.found(checks.cycles), [])
        self.plant("kernel_compat/module/sluice_b.c", "int sluice_a(void);\nint sluice_b(void)\n{\n\treturn sluice_a();\n}\n", add=True)
        self.catches(checks.cycles, "kernel_compat/module: these need each other: sluice_a.c, sluice_b.c")

    def test_a_long_file(self):
        for suffix in ("cc", "h", "c", "py", "sh", "bzl", "md"):
            self.plant("tests/long/full." + suffix, "\n" * checks.MOST_LINES)
        self.assertEqual(self.found(checks.long_files), [])
        for suffix in ("cc", "h", "c", "py", "sh", "bzl", "md"):
            self.plant("tests/long/full." + suffix, "\n", add=True)
        self.catches(checks.long_files, *("tests/long/full.%s: 501 lines, of which 500 are allowed" % suffix for suffix in ("bzl", "c", "cc", "h", "py", "sh")))

    def test_an_include_through_a_dependency_of_a_dependency(self):
        self.plant("transport/api/page.cc", "#include <sluice/base/word.h>\n", add=True)
        self.catches(checks.direct_dependencies, "page.cc:4 includes <sluice/base/word.h>: add //transport/base:word")

    def test_an_include_in_quotes_without_a_dependency(self):
        self.plant("transport/api/print.cc", '#include "transport/base/word.h"\n', add=True)
        self.catches(checks.direct_dependencies, '"transport/base/word.h": add //transport/base:word')

    def test_an_include_of_a_private_header_of_another_target(self):
        self.plant("transport/base/inner.h", "")
        self.plant("transport/base/BUILD", BASE_BUILD.replace('"word.cc"', '"word.cc", "inner.h"'))
        self.plant("transport/api/page.cc", "#include <sluice/base/inner.h>\n", add=True)
        self.catches(checks.direct_dependencies, "no target offers it")

    def test_an_include_of_nothing(self):
        self.plant("transport/api/page.cc", "#include <sluice/base/gone.h>\n", add=True)
        self.catches(checks.direct_dependencies, "gone.h>: no target offers it")

    def test_a_file_in_no_target(self):
        self.plant("transport/base/forgotten.cc", "")
        self.catches(checks.orphans, "transport/base/forgotten.cc")

    def test_a_room_that_looks_up(self):
        self.plant("transport/base/word.h", "#include <sluice/api/page.h>\n", add=True)
        self.catches(checks.rooms, "'base' must not see 'api'")

    def test_siblings_that_see_each_other(self):
        self.plant("transport/tcp/link.cc", "#include <sluice/shm/ring.h>\n")
        self.plant("allocator/arena.cc", "#include <sluice/wire/messages.h>\n")
        self.catches(checks.rooms, "'allocator' must not see 'wire'", "'tcp' must not see 'shm'")

    def test_api_that_sees_proto_and_a_product_that_sees_tests(self):
        self.plant("transport/api/page.cc", '#include <sluice/proto/session.h>\n#include "tests/support/skip.h"\n')
        self.catches(checks.rooms, "'api' must not see 'proto'", "'api' must not see 'tests'")

    def test_of_the_tools_the_main_job_alone_sees_the_plugins(self):
        self.plant("plugins/grpc/bridge.h", "#pragma once\n")
        self.plant("tools/demo_job/lane.cc", "#include <sluice/grpc/bridge.h>\n")
        self.assertEqual(self.found(checks.rooms), [])
        self.plant("tools/perf/lane.cc", "#include <sluice/grpc/bridge.h>\n")
        self.catches(checks.rooms, "tools/perf/lane.cc:1 includes <sluice/grpc/bridge.h>: 'tools' must not see 'plugins'")

    def test_a_dependency_that_no_include_shows(self):
        self.plant("transport/base/BUILD", BASE_BUILD.replace('":word"', '":word", "//transport/api:page"'))
        self.catches(checks.rooms, "//transport/base:line depends on //transport/api:page: 'base' must not see 'api'")

    def test_a_room_without_a_rule(self):
        self.plant("transport/carrier_pigeon/nest.cc", "#include <sluice/base/word.h>\n")
        self.catches(checks.rooms, "room 'carrier_pigeon' has no rule")

    def test_what_comes_in_by_another_door(self):
        self.plant("transport/shm/link.cc", "\n".join([
            "#include <boost/asio.hpp>", "#include <infiniband/verbs.h>", "#include <rdma/rdma_cma.h>",
            "void* m = ::mmap(0, 1, 0, 0, 0, 0);", "int f = memfd_create(0, 0);", "int c = clock_gettime(0, 0);",
            "auto n = std::chrono::steady_clock::now();", "std::thread t;", "int p = pthread_create(0, 0, 0, 0);",
            "int s = socket(AF_PACKET, 0, 0);", "void w() { std::this_thread::sleep_for(1s); }"]))
        found = self.found(checks.doors)
        self.assertEqual(sorted(int(line.split(":")[1]) for line in found), list(range(1, 12)), found)

    def test_assert_on_what_a_peer_sent(self):
        self.plant("transport/wire/messages.cc", "#include <cassert>\nstatic_assert(true);\nvoid f() { assert(1); }\n")
        self.plant("transport/proto/session.cc", "void f() { assert(1); }\n")
        self.plant("transport/select/open.cc", "void f() { assert(1); }\n")
        self.catches(checks.doors, "session.cc:1: assert", "messages.cc:1: assert", "messages.cc:3: assert")

    def test_a_header_that_needs_another_first(self):
        self.plant("transport/base/line.h", "#pragma once\ninline std::string line() { return {}; }\n")
        self.assertTrue(any("<sluice/base/line.h> does not compile alone" in line for line in self.found(checks.headers_alone)))

    def test_a_header_without_a_guard(self):
        self.plant("transport/base/word.h", "inline int word() { return 1; }\n")
        self.assertTrue(any("<sluice/base/word.h> does not compile alone" in line for line in self.found(checks.headers_alone)))

    def test_a_public_header_that_includes_a_private_one(self):
        self.plant("transport/base/inner.h", "#pragma once\n")
        self.plant("transport/base/BUILD", BASE_BUILD.replace('"word.cc"', '"word.cc", "inner.h"'))
        self.plant("transport/base/line.h", "#pragma once\n#include <sluice/base/inner.h>\n")
        self.plant("transport/api/page.h", "#pragma once\n")
        self.catches(checks.headers_alone, "inner.h: No such file")

    def test_a_users_header_that_reaches_boost(self):
        self.plant("transport/api/page.h", "#pragma once\n#include <boost/version.hpp>\n")
        self.catches(checks.headers_alone, "<sluice/api/page.h> reaches")


if __name__ == "__main__":
    unittest.main(verbosity=2)
