"""Which tests ought to notice a bug in which file: the nearest first, and the cheapest of those that are as near."""

ENDPOINT = "//tests/contract:endpoint_{}_test"
EXCHANGE = "//tests/contract:exchange_{}_test"
FAULTS = "//tests/contract:faults_{}_test"
VERBS = "//tests/verbs/backend:{}_test"
SLP = [f"//tests/slp:{name}_test" for name in ("wire", "hash", "stream", "transfer", "session", "handles", "numbers", "seal", "shrink", "golden")]
SLP_LONG = ["//tests/slp:simulate"]
WIRE = [f"//tests/wire:{name}_test" for name in ("round_trip", "golden", "refusal", "layout", "remote_key", "address", "mutation")]
ALLOCATOR = [f"//tests/allocator:{name}_test" for name in
             ("arena", "free_runs", "buffer", "arena_fault", "arena_registrars", "page_source", "machine_memory", "arena_warm_path", "arena_fork",
              "arena_property", "arena_threads", "dlpack")]
SHM = [f"//tests/shm:{name}_test" for name in ("limits", "packets", "ends", "ring_model")]
PROTO = [f"//tests/proto:{name}_test" for name in ("direct", "tables", "credits", "control_queue", "liveness", "matching", "session_set", "busy_links",
                                                    "last_view")]
ALL_VERBS = [VERBS.format(name) for name in ("revoke", "proofs", "registrar", "devices", "status", "doorbells", "quarantine", "greeting", "select",
                                             "striping", "moderation", "limits", "events", "hostile", "calls", "failures")]

# Rooms, in the order of the program's list; a file's own entry comes before that of its room.
ROOMS = {
    "wire": ["transport/wire/"],
    "allocator": ["allocator/"],
    "slp": ["kernel_compat/slp/"],
    "verbs": ["transport/verbs/"],
    "tcp": ["transport/tcp/"],
    "select": ["transport/select/"],
    "exchange": ["transport/exchange/"],
    "shm": ["transport/shm/"],
    "proto": ["transport/proto/"],
    "l2": ["transport/l2/"],
}
TESTS = {
    "transport/wire/": [*WIRE, ENDPOINT.format("loopback")],
    "allocator/free_runs.h": ["//tests/allocator:free_runs_test", *ALLOCATOR],
    "allocator/machine_memory": ["//tests/allocator:machine_memory_test", *ALLOCATOR],
    "allocator/linux_page_source": ["//tests/allocator:page_source_test", *ALLOCATOR],
    "allocator/dlpack": ["//tests/allocator:dlpack_test"],
    "allocator/": [*ALLOCATOR, "//tests/verbs/backend:registrar_test"],
    "kernel_compat/slp/slp_seal": ["//tests/slp:seal_test", *SLP, *SLP_LONG],
    "kernel_compat/slp/slp_wire": ["//tests/slp:wire_test", *SLP, *SLP_LONG],
    "kernel_compat/slp/slp_stream": ["//tests/slp:stream_test", *SLP, *SLP_LONG],
    "kernel_compat/slp/": [*SLP, *SLP_LONG],
    "transport/verbs/registrar": [VERBS.format("registrar"), *ALL_VERBS],
    "transport/verbs/moderation": ["//tests/verbs/backend:moderation_rule_test", VERBS.format("moderation")],
    "transport/verbs/lanes": [VERBS.format("striping"), *ALL_VERBS],
    "transport/verbs/devices": [VERBS.format("devices"), *ALL_VERBS],
    "transport/verbs/": [*ALL_VERBS, ENDPOINT.format("rdma")],
    "transport/tcp/": ["//tests/tcp:link_send_test", "//tests/tcp:link_receive_test", "//tests/tcp:link_fairness_test", "//tests/tcp:greeting_test",
                       "//tests/tcp:greeting_limits_test",
                       "//tests/tcp:endpoint_test", "//tests/tcp:liveness_test", ENDPOINT.format("tcp"), FAULTS.format("tcp"),
                       EXCHANGE.format("tcp"), ENDPOINT.format("sluice")],
    "transport/select/silences": ["//tests/select:silences_test"],
    "transport/select/": [VERBS.format("select"), ENDPOINT.format("sluice"), EXCHANGE.format("sluice"), "//tests/l2:chosen_test"],
    "transport/exchange/": ["//tests/exchange:places_loopback_test", "//tests/exchange:strangers_test", "//tests/exchange:waiting_steps_test",
                            "//tests/exchange:latest_loopback_test", EXCHANGE.format("loopback"), EXCHANGE.format("tcp"), FAULTS.format("loopback")],
    "transport/shm/peer_user": ["//tests/shm:user_test"],
    "transport/shm/ring": ["//tests/shm:ring_test", *SHM, ENDPOINT.format("shm"), FAULTS.format("shm")],
    "transport/shm/extent_map": ["//tests/shm:extent_map_test", *SHM, ENDPOINT.format("shm")],
    "transport/shm/": ["//tests/shm:mapper_test", *SHM, ENDPOINT.format("shm"), EXCHANGE.format("shm"), FAULTS.format("shm")],
    "transport/proto/device_": [*PROTO, VERBS.format("proofs"), VERBS.format("quarantine"), ENDPOINT.format("rdma"), VERBS.format("failures"),
                                ENDPOINT.format("l2"), "//tests/l2:packet_carrier_test"],
    "transport/proto/half_open": ["//tests/l2:half_open_test", ENDPOINT.format("udp"), "//tests/l2:limits_test"],
    "transport/proto/": [*PROTO, ENDPOINT.format("loopback"), ENDPOINT.format("tcp"), ENDPOINT.format("shm"), "//tests/sim:simulate",
                         EXCHANGE.format("loopback"), FAULTS.format("loopback"), VERBS.format("proofs"), "//tests/exchange:strangers_test"],
    "transport/l2/cipher": ["//tests/slp:seal_test", "//tests/l2:sealed_test"],
    "transport/l2/": ["//tests/l2:udp_carrier_test", "//tests/l2:timers_test", "//tests/l2:places_test", "//tests/l2:discovery_test",
                      "//tests/l2:peers_test", ENDPOINT.format("udp"), "//tests/l2:sealed_test", "//tests/l2:half_open_test",
                      "//tests/l2:two_carriers_test", "//tests/l2:packet_carrier_test", "//tests/l2:nodes_test", "//tests/l2:limits_test",
                      "//tests/l2:turn_test", "//tests/l2:downgrade_test", "//tests/l2:hostile_test", "//tests/l2:wrong_frames_test",
                      "//tests/l2:broker_test", "//tests/l2:udp_veth_test", "//tests/l2:interface_test", "//tests/l2:relay_test"],
}
# Programs that are no tests by themselves, and how they are run.
ARGUMENTS = {
    "//tests/slp:simulate": ["--schedules", "1000"],
    "//tests/sim:simulate": ["--schedules", "1000"],
}
# Headers with code of their own, and few who include them; the others are declarations.
HEADERS = ("allocator/free_runs.h", "allocator/block_cache.h", "allocator/size_classes.h", "transport/shm/ring.h", "transport/proto/grants.h",
           "transport/proto/credits.h",
           "transport/proto/half_open.h", "transport/l2/carrier/allowance.h")
# What only a guest has: the kernel module, and real devices behind the door to the libraries.
LEFT_OUT = ("transport/kmod/", "transport/verbs/verbs_api")


def tests_of(file):
    """In order, each once."""
    found = max((prefix for prefix in TESTS if file.startswith(prefix)), key=len, default=None)
    return list(dict.fromkeys(TESTS[found])) if found else []
