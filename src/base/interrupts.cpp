#include "base/interrupts.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>

#include "base/failed_call.h"
#include "base/sandbox.h"

namespace distgrad {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGALRM};
std::atomic<int> first_signal{0};
std::atomic<std::int64_t> first_ms{0};
std::atomic<int> event{-1};
std::array<struct sigaction, kSignals.size()> previous;

// One request may arrive as two signals, as timeout(1) signals the process and then its group.
constexpr std::int64_t kSameRequestMs = 300;

std::int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void note(int signal, siginfo_t* info, void*) {
  // Ignores what code under test sends in a sandbox: a sender outside the namespace has no number.
  if (in_sandbox() && info->si_code <= 0 && info->si_code != SI_TIMER && info->si_pid != 0) return;
  const int saved = errno;
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) {
    first_ms = now_ms();
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(event, &one, sizeof one);
  } else if (now_ms() - first_ms >= kSameRequestMs) {  // whoever asks twice does not want to wait
    ::signal(signal, SIG_DFL);
    raise(signal);  // the handler's return delivers it
  }
  errno = saved;
}

}  // namespace

Interrupts::Interrupts() {
  event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) throw failed_call("eventfd");
  first_signal = 0;
  struct sigaction action {};
  action.sa_sigaction = note;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaddset(&action.sa_mask, signal);  // note() runs to its end
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &previous[i]);
    // nohup: what the parent ignores stays ignored.
    if (previous[i].sa_handler == SIG_IGN) sigaction(kSignals[i], &previous[i], nullptr);
  }
}

Interrupts::~Interrupts() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  close(event.exchange(-1));
}

void interrupt_after(double seconds) {
  itimerval timer{};
  timer.it_value.tv_sec = static_cast<time_t>(seconds);
  timer.it_value.tv_usec =
      std::max<suseconds_t>(1, static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6));
  setitimer(ITIMER_REAL, &timer, nullptr);
}

int interrupted_by() { return first_signal; }
int interrupts_fd() { return event; }

}  // namespace distgrad
