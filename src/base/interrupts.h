// SIGINT, SIGTERM and SIGHUP as a value that an event loop can wait for, so that an interrupted run
// still stops its ranks and writes its reports.
#pragma once

namespace distgrad {

// While it lives, the first of these signals is noted; one that comes 0.3 s after it or later ends
// the process at once, an earlier one is taken for the same request. At most one at a time. Made
// and used by the main thread.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
};

// The first signal noted (SIGINT, ...), or 0.
int interrupted_by();

// Becomes readable with the first signal; -1 while there is no Interrupts object.
int interrupts_fd();

// Interrupts this process by SIGALRM after so many seconds, once there is an Interrupts, or ends
// it.
void interrupt_after(double seconds);

}  // namespace distgrad
