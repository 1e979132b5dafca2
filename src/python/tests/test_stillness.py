"""Which processes look as if they wait for ever, on a busy machine, too."""

import os
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from distgrad.stillness import Stillness, collective_of  # noqa: E402

BEGIN = """
import threading, time
def poll():
    while True:
        time.sleep(0.005)
def work():  # half of the time
    while True:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
        time.sleep(0.05)
for_ever = threading.Event()
print("begun", flush=True)
"""
PROCESSES = {
    "waits": "threading.Thread(target=poll, daemon=True).start(); for_ever.wait()",
    "has a thread that works": "threading.Thread(target=work, daemon=True).start(); "
                               "for_ever.wait()",
    "naps": "while True: time.sleep(1)",
    "works": "while True: pass",  # and takes the cores from the others
    "works, too": "while True: pass",
}


class WhatLooksStill(unittest.TestCase):
    def test_who_waits_and_nobody_else(self):
        processes = {name: subprocess.Popen([sys.executable, "-c", BEGIN + body],
                                            stdout=subprocess.PIPE, text=True)
                     for name, body in PROCESSES.items()}
        try:
            for process in processes.values():
                self.assertEqual(process.stdout.readline(), "begun\n")
            looks = {name: Stillness() for name in processes}
            still, begun = set(), time.monotonic()
            while time.monotonic() < begun + 12 or (
                    not still and time.monotonic() < begun + 60):
                still |= {name for name, look in looks.items()
                          if look.lasts([processes[name].pid])}
                time.sleep(0.05)
            self.assertEqual(still, {"waits"})
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()

    def test_a_process_that_is_gone_is_not_still(self):
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        look = Stillness()
        for _ in range(3):
            self.assertFalse(look.lasts([gone.pid]))
            time.sleep(0.3)

    def test_the_outermost_of_torchs_frames_says_which_collective(self):
        stack = ('  File "/p/torch/distributed/distributed_c10d.py", line 1 in wait\n'
                 '  File "/p/torch/distributed/distributed_c10d.py", line 2 in all_reduce\n'
                 '  File "/p/torch/distributed/c10d_logger.py", line 3 in wrapper\n'
                 '  File "train.py", line 4 in step\n')
        self.assertEqual(collective_of(stack), "all_reduce")
        self.assertEqual(collective_of('  File "train.py", line 4 in step\n'), "")


if __name__ == "__main__":
    unittest.main()
