#!/usr/bin/python3
"""Debian's Python gRPC, client and server unchanged, through two proxies over Unix sockets."""
import concurrent.futures
import os
import re
import tempfile
import threading

import grpc

import command

PATIENCE = 60
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
BLOCK = os.urandom(1 << 20)


def unary(request, context):
    metadata = dict(context.invocation_metadata())
    if "fail" in metadata:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as you wish: " + metadata["fail"])
    if "wait" in metadata:
        stopped = threading.Event()
        context.add_callback(stopped.set)
        stopped.wait(PATIENCE)
        return b""
    context.set_trailing_metadata((("seen-bin", metadata.get("sent-bin", b"")),))
    return request[::-1]


def stream(requests, _):
    for request in requests:
        yield request
        yield b"%d" % len(request)


class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return {"/test/Unary": grpc.unary_unary_rpc_method_handler(unary),
                "/test/Stream": grpc.stream_stream_rpc_method_handler(stream)}.get(details.method)


class Grpc(command.CommandTest):
    def setUp(self):
        super().setUp()
        kept = tempfile.TemporaryDirectory(prefix="sluice-grpc.")
        self.addCleanup(kept.cleanup)
        service, programs = (f"unix:{kept.name}/{name}" for name in ("service", "programs"))
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), handlers=[Handler()], options=UNLIMITED)
        self.server.add_insecure_port(service)
        self.server.start()
        self.addCleanup(lambda: self.server.stop(None).wait(PATIENCE))
        there = self.start("proxy", "--at", "sluice://127.0.0.1:0", "--service", service)
        to = re.search(r"listening at (\S+),", there.stdout.readline()).group(1)
        here = self.start("proxy", "--listen", programs, "--to", to)
        self.assertRegex(here.stdout.readline(), "connected to .* by shm")
        self.assertIn("listening", here.stdout.readline())
        self.channel = grpc.insecure_channel(programs, options=UNLIMITED)
        self.addCleanup(self.channel.close)
        self.unary = self.channel.unary_unary("/test/Unary")
        self.stream = self.channel.stream_stream("/test/Stream")

    def test_messages_of_any_size_come_back(self):
        for request in (b"", b"x", b"sluice" * 1000, BLOCK * 3, BLOCK * 64):
            self.assertEqual(self.unary(request, timeout=PATIENCE), request[::-1])

    def test_streams_both_ways(self):
        requests = [BLOCK[:size] for size in (0, 1, 1000, 65536, 1 << 20)] * 20
        answers = list(self.stream(iter(requests), timeout=PATIENCE))
        self.assertEqual(answers[0::2], requests)
        self.assertEqual(answers[1::2], [b"%d" % len(request) for request in requests])

    def test_100_calls_at_once(self):
        calls = [self.unary.future(b"%d" % number, timeout=PATIENCE) for number in range(100)]
        self.assertEqual([call.result() for call in calls], [(b"%d" % number)[::-1] for number in range(100)])

    def test_metadata_status_and_details(self):
        _, call = self.unary.with_call(b"x", metadata=(("sent-bin", b"\0\xff"),), timeout=PATIENCE)
        self.assertIn(("seen-bin", b"\0\xff"), call.trailing_metadata())
        with self.assertRaises(grpc.RpcError) as raised:
            self.unary(b"x", metadata=(("fail", "please"),), timeout=PATIENCE)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(raised.exception.details(), "as you wish: please")
        with self.assertRaises(grpc.RpcError) as raised:
            self.channel.unary_unary("/test/Unknown")(b"", timeout=PATIENCE)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_deadlines_and_cancellation(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.unary(b"x", metadata=(("wait", "1"),), timeout=0.2)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        call = self.unary.future(b"x", metadata=(("wait", "1"),), timeout=PATIENCE)
        call.cancel()
        self.assertEqual(call.code(), grpc.StatusCode.CANCELLED)
        self.assertEqual(self.unary(b"ab", timeout=PATIENCE), b"ba")

    def test_a_server_that_is_gone_is_unavailable(self):
        self.assertEqual(self.unary(b"ab", timeout=PATIENCE), b"ba")
        self.server.stop(None).wait(PATIENCE)
        with self.assertRaises(grpc.RpcError) as raised:
            self.unary(b"x", timeout=PATIENCE)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)


if __name__ == "__main__":
    command.main()
