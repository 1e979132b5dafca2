"""The rank program as a process, driven over its sockets as docs/protocol.md says."""

import mmap
import os
import signal
import struct
import time
import unittest
from pathlib import Path

import torch

from small_driver import Driver, DriverTest

SUBJECTS = Path(__file__).resolve().parent / "subjects"


def program(size=2, operand="x", loss="torch.sum(y * (rank + 1))", value="torch.arange(2.0) + rank",
            **call):
    collective = {"kind": "all_reduce", "group": "", "op": "sum", "factor": 1.0, "root": 0, **call}
    return {
        "world_size": size,
        "dtype": "float64",
        "groups": [],
        "inputs": [{"name": "x", "pointer": "", "layout": [{"axis": "", "kind": "local"}],
                    "expr": {"text": value}}],
        "steps": [{"name": "y", "pointer": "",
                   "collective": {**collective, "operand": {"text": operand, "pointer": ""}}}],
        "loss": {"text": loss, "pointer": ""},
    }


class Protocol(DriverTest):
    def run_team(self, case, size=2, **request):
        ranks, board = self.driver.team(size)
        for rank in ranks:
            rank.request(case, **request)
        replies = [rank.reply() for rank in ranks]
        self.driver.end(ranks)
        return replies, board

    def test_says_what_it_is(self):
        self.assertEqual(self.driver.ready,
                         {"kind": "ready", "protocol": 1,
                          "torch": torch.__version__.partition("+")[0]})

    def test_a_case_from_inputs_to_gradients(self):
        replies, board = self.run_team(program(), weights=[1.0, 10.0])
        for rank, (header, frame) in enumerate(replies):
            self.assertNotIn("error", header)
            self.assertEqual((header["id"], header["loss"], header["loss_shape"]),
                             (1, 4.0 * (rank + 1), []))
            self.assertEqual(frame.tensor(header["steps"][0]).tolist(), [1.0, 3.0])
            self.assertEqual(frame.tensor(header["gradients"][0]).tolist(), [21.0, 21.0])
        memory = mmap.mmap(board, 0)
        self.assertGreater(struct.unpack_from("<i", memory, 0)[0], 0)
        for rank in range(2):
            case_id, started, step, phase = struct.unpack_from("<Qqii", memory, 8 + 24 * rank)
            self.assertEqual((case_id, step, phase), (1, 1, 5))
            self.assertLess(abs(time.monotonic_ns() - started), 60e9)

    def test_every_rank_reaches_every_backward(self):
        """Though neither loss uses y on rank 1, nor does the operand want a gradient on rank 0."""
        case = program(operand="x if rank == 1 else torch.ones(2)",
                       loss="torch.sum(y) if rank == 0 else torch.sum(x * 2)")
        replies, _ = self.run_team(case)
        self.assertIsNone(replies[0][0]["gradients"][0])
        header, frame = replies[1]
        self.assertEqual(frame.tensor(header["gradients"][0]).tolist(), [3.0, 3.0])

    def test_a_large_result_comes_in_shared_memory(self):
        replies, _ = self.run_team(program(value="torch.arange(200000.0) + rank"))
        header, frame = replies[1]
        self.assertEqual(frame.tensor(header["steps"][0])[:3].tolist(), [1.0, 3.0, 5.0])
        self.assertEqual(frame.tensor(header["gradients"][0])[-1].item(), 3.0)

    def test_a_number_that_json_lacks(self):
        replies, _ = self.run_team(program(loss="torch.sum(y) / 0"))
        self.assertEqual([header["loss"] for header, _ in replies], ["inf", "inf"])

    def test_ranks_serve_one_case_after_another_sent_ahead(self):
        ranks, _ = self.driver.team(2)
        for n in range(50):
            for rank in ranks:
                rank.request(program(value=f"torch.arange(2.0) + {n}"))
        for n in range(50):
            for rank in ranks:
                header, frame = rank.reply()
                self.assertEqual((header["id"], frame.tensor(header["steps"][0]).tolist()),
                                 (n + 1, [2.0 * n, 2.0 * n + 2]))
        self.driver.end(ranks)

    def test_a_collective_that_one_rank_makes_alone_is_not_paired_with_one_of_the_next_case(self):
        """Else the case with the mistake comes to an end, and the verdict of the innocent one after
        it is wrong."""
        ranks, board = self.driver.team(2)
        for rank in ranks:
            rank.request(program(),
                         subject=f"all_reduce=python:{SUBJECTS / 'mistakes.py'}:summed_by_rank_0")
            rank.request(program())
        self.assertEqual(ranks[1].reply()[0]["id"], 1)
        time.sleep(0.3)
        memory = mmap.mmap(board, 0)
        at = [struct.unpack_from("<Q", memory, 8 + 24 * rank)[0] for rank in range(2)]
        self.assertEqual(at, [1, 1])
        for worker in (ranks[0].forked["worker"], ranks[1].forked["worker"]):
            self.driver.send(kind="kill", worker=worker)
            self.driver.event()

    def test_an_exception_names_its_step_and_ends_the_rank(self):
        ranks, _ = self.driver.team(1)
        ranks[0].request(program(1, operand="x @ torch.ones(3)"))
        ranks[0].request(program(1))
        header, _ = ranks[0].reply()
        error = header["error"]
        self.assertEqual((error["kind"], error["rank"], error["step"]), ("exception", 0, "y"))
        self.assertIn("inconsistent tensor size", error["message"])
        with self.assertRaises(EOFError):
            ranks[0].reply()
        exited = self.driver.event()
        self.assertEqual((exited["kind"], exited["worker"], exited["wait_status"]),
                         ("exited", 1, 0))

    def test_a_peer_that_is_gone_is_an_error_of_the_backend(self):
        ranks, _ = self.driver.team(2)
        for rank in ranks:
            rank.request(program())
        for rank in ranks:
            rank.reply()
        self.driver.send(kind="kill", worker=1)
        self.assertEqual(self.driver.event()["wait_status"], signal.SIGKILL)
        ranks[1].request(program())
        self.assertEqual(ranks[1].reply()[0]["error"]["kind"], "backend")
        self.driver.event()

    @unittest.skipIf(torch.cuda.is_available(), "there is a GPU")
    def test_without_a_gpu_what_needs_one_is_skipped(self):
        for backend, device, why in (
            ("gloo", "cuda", "finds no GPU"),
            ("nccl", "cuda", "finds no GPU"),
            ("mpi", "cpu", "gloo or nccl, not on mpi"),
        ):
            replies, _ = self.run_team(program(), backend=backend, device=device)
            for reply in replies:
                self.assertIn(why, reply[0]["skipped"])
                self.assertNotIn("error", reply[0])

    def test_a_subject_that_is_not_there(self):
        replies, _ = self.run_team(program(1), 1,
                                   subject="python:no_such_module_anywhere:all_reduce")
        self.assertEqual(replies[0][0]["error"]["kind"], "subject")
        self.assertIn("no_such_module_anywhere", replies[0][0]["error"]["message"])

    def test_torch_is_as_it_is_unless_something_is_measured(self):
        """And what would be measured of modules that are imported by then needs other ranks."""
        place = f"python:{SUBJECTS / 'observer.py'}:whose"
        code = {"name": "y", "pointer": "",
                "call": {"code": place, "args": [{"text": "x", "pointer": ""}], "simulate": ""}}
        called = {**program(1), "steps": [code]}
        plain = {"program": program(1), "subject": "all_reduce=" + place}
        measuring = {"program": called, "measured": [torch.ones(1)]}
        ((as_it_is,),) = self.driver.run(1, [plain])
        self.assertEqual(as_it_is["output"],
                         "apply None hooks _tensor.py nn/modules/module.py nn/modules/module.py\n")
        (measured,), (then,) = self.driver.run(1, [measuring, plain])
        self.assertIn("measured", measured)
        self.assertIn("ranks/cuts.py hooks ", then["output"])
        ranks, _ = self.driver.team(1)
        for request in (plain, measuring):
            ranks[0].request(**request)
        ranks[0].reply()
        # So that the driver tries again on new ranks
        self.assertEqual(ranks[0].reply()[0]["error"]["kind"], "backend")
        self.driver.end(ranks)

    def test_nothing_is_left_when_the_driver_goes(self):
        driver = Driver()
        ranks, _ = driver.team(2)
        self.assertEqual(driver.close(), 0)
        for rank in ranks:
            with self.assertRaises(ProcessLookupError):
                os.kill(rank.forked["pid"], 0)


if __name__ == "__main__":
    unittest.main()
