"""Tests that run in a guest of `sluice lab`: docs/lab.md, "Tests in a guest"."""

def guest_test(
        name,
        binary,
        args = [],
        nodes = 1,
        peer = None,
        peer_args = [],
        net = "",
        card = None,
        kernel = "tcg",
        driver = None,
        memory = "1G",
        cpus = None,
        memory_nodes = None,
        timeout = "moderate",
        tier = "guest",
        data = [],
        tags = [],
        **kwargs):
    """Runs `binary`, a cc_test or cc_binary, in a guest; its output and exit status are the test's.

    nodes, net, card, kernel, driver, memory, cpus, memory_nodes: as `sluice lab run` takes them. With nodes = 2, `peer` is the program of node 2.
    timeout: Bazel's word; the guest is ended, and its log kept, a little earlier.
    tier: "guest" runs in tools/test; "guest-long" only in its full tier, and so does "guest-plain", with the fault points
    compiled in.
    Not part of `bazel test //...` (tag manual): it needs what tools/setup --lab installs.
    """
    options = ["--kernel", kernel, "--nodes", str(nodes), "--memory", memory]
    if driver:
        options += ["--driver", driver]
    if cpus:
        options += ["--cpus", str(cpus)]
    if memory_nodes:
        options += ["--memory-nodes", str(memory_nodes)]
    if net:
        options += ["--net", net]
    if card:
        options += ["--card", card]
    programs = [binary]
    if peer:
        if nodes != 2:
            fail("guest_test %s: a peer needs nodes = 2" % name)
        options += ["--peer-program", "'%s'" % " ".join(["$(location %s)" % peer] + peer_args)]
        if peer != binary:
            programs.append(peer)
    if tier not in ("guest", "guest-plain", "guest-long"):
        fail("guest_test %s: tier is guest, guest-plain or guest-long, not %s" % (name, tier))
    native.sh_test(
        name = name,
        srcs = ["//tests/lab:in_guest.py"],
        args = options + ["--", "$(location %s)" % binary] + args,
        data = programs + data + ["//tests/lab:lab"],
        size = "large",
        timeout = timeout,
        # In no sandbox (the guest sees the machine's files), by name only.
        tags = tags + ["local", "manual", tier],
        **kwargs
    )
