// Turns SIGINT, SIGTERM and SIGHUP into a value that an event loop can wait for, so that an
// interrupted run still stops its ranks and writes its reports.
#pragma once

namespace distgrad {

// Notes the first of these signals during its lifetime. A further one ends the process at once,
// unless it comes within 0.3 s and so belongs to the same request. Only one may exist at a time,
// made and used by the main thread.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
};

// Returns the first signal noted (SIGINT, ...), or 0.
int interrupted_by();

// Returns a descriptor that becomes readable with the first signal; -1 while no Interrupts exists.
int interrupts_fd();

// Sends this process SIGALRM after so many seconds: it interrupts once there is an Interrupts, else
// it ends the process.
void interrupt_after(double seconds);

}  // namespace distgrad
