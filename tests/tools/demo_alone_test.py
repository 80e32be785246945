#!/usr/bin/env python3
"""`sluice_demo`, which tools/demo builds and runs: the main job without the rest of the command."""
import command


class DemoAlone(command.CommandTest):
    def test_the_job_runs_verified_and_ends_with_a_table(self):
        out = self.run_command("demo", "--model", "tiny", "--steps", "2", "--paths", "shm,tcp").stdout
        rows = [line.split() for line in out.splitlines() if line.startswith(("shm ", "tcp "))]
        self.assertEqual(len(rows), 10, out)
        self.assertEqual({row[-1] for row in rows}, {"yes"}, out)  # every byte was compared
        self.assertEqual({row[1] for row in rows}, {"zerocopy", "onecopy", "grpc-over-sluice", "grpc-unary", "grpc-expert"})

    def test_a_wrong_command_line_is_told_with_an_example(self):
        for arguments in ((), ("perf",), ("demo", "--model", "huge")):
            self.assertIn("example", self.run_command(*arguments, expect=2).stderr)
        self.assertIn("--model", self.run_command("demo", "--help").stdout)


if __name__ == "__main__":
    command.main()
