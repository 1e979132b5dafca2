// Drivers that end in every way, as child processes of the test: no process may survive them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/interrupts.h"
#include "pool/process_scan.h"
#include "pool/worker_pool.h"

namespace distgrad {
namespace {

RunRequest request_of(int world_size, const std::string& script) {
  RunRequest request;
  request.program.world_size = world_size;
  request.program.loss.text = script;
  request.weights.assign(static_cast<std::size_t>(world_size), 1);
  return request;
}

class ProcessTest : public testing::Test {
 protected:
  // A driver of 3 ranks and a simulator in the middle of something long, that does this meanwhile.
  pid_t start_driver(const std::function<void(WorkerPool&)>& drive) {
    const pid_t child = fork();
    if (child != 0) return child;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP})
      ::signal(signal, SIG_DFL);  // nohup ignores one
    int status = 99;
    try {
      const Interrupts interrupts;
      WorkerPool pool({{{DISTGRAD_FAKE_RANK}}, 1});
      SimulateRequest simulation;
      simulation.program.world_size = 1;
      simulation.program.loss.text = "sim: hang";
      pool.simulate(simulation, 60);
      pool.run(request_of(3, "*: hang"), 60);
      drive(pool);
      status = interrupted_by();
    } catch (const SystemError&) {
      status = 98;
    }
    _exit(status);
  }

  void wait_for_workers(std::size_t ranks) {
    for (int i = 0; i < 1000 && marked_processes(mark_, "dg rank").size() < ranks; ++i)
      usleep(5000);
    EXPECT_EQ(marked_processes(mark_, "dg rank").size(), ranks);
  }

  int status_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  std::string mark_ = mark_environment();
};

TEST_F(ProcessTest, KilledDriver) {
  const pid_t driver = start_driver([](WorkerPool& w) { w.next(); });
  wait_for_workers(3);
  kill(driver, SIGKILL);
  status_of(driver);
  EXPECT_TRUE(all_gone(mark_));
}

// What ranks started themselves goes too, and ranks that are stopped.
TEST_F(ProcessTest, KilledDriverOfRanksWithChildren) {
  const pid_t driver = start_driver([](WorkerPool& w) {
    w.run(request_of(2, "*: child; *: hang"), 60);
    w.next();
  });
  wait_for_workers(3 + 2 + 2);
  kill(marked_processes(mark_, "dg rank 0/3").at(0), SIGSTOP);
  kill(driver, SIGKILL);
  status_of(driver);
  EXPECT_TRUE(all_gone(mark_));
}

TEST_F(ProcessTest, DriverKilledWhileItStarts) {
  for (int delay_us = 0; delay_us < 20'000; delay_us += 1000) {
    const pid_t driver = start_driver([](WorkerPool& w) { w.next(); });
    usleep(static_cast<useconds_t>(delay_us));
    kill(driver, SIGKILL);
    status_of(driver);
    ASSERT_TRUE(all_gone(mark_)) << "killed after " << delay_us << " us";
  }
}

TEST_F(ProcessTest, InterruptedDriver) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t driver = start_driver([](WorkerPool& w) { w.next(); });
    wait_for_workers(3);
    kill(driver, signal);
    const int status = status_of(driver);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), signal);
    EXPECT_TRUE(all_gone(mark_));
  }
}

// As `timeout -s INT` sends them: to the process, and at once to its group.
TEST_F(ProcessTest, OneRequestInTwoSignals) {
  for (int i = 0; i < 20; ++i) {
    const pid_t driver = start_driver([](WorkerPool& w) { w.next(); });
    wait_for_workers(3);
    kill(driver, SIGINT);
    usleep(static_cast<useconds_t>(100 * i));
    kill(driver, SIGINT);
    const int status = status_of(driver);
    ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), SIGINT);
  }
}

TEST_F(ProcessTest, WhoAsksAgainDoesNotWait) {
  const pid_t driver = start_driver([](WorkerPool& w) {
    w.next();
    pause();  // busy with something that does not end
  });
  wait_for_workers(3);
  kill(driver, SIGINT);
  usleep(1'000'000);
  kill(driver, SIGINT);
  const int status = status_of(driver);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
  EXPECT_TRUE(all_gone(mark_));
}

TEST_F(ProcessTest, DriverThatLeavesAtOnce) {
  for (int i = 0; i < 20; ++i) {
    const pid_t driver = start_driver([](WorkerPool& w) { w.next_if_any(); });
    EXPECT_EQ(WEXITSTATUS(status_of(driver)), 0);
    EXPECT_TRUE(marked_processes(mark_).empty()) << "the driver waits for what it started";
  }
}

TEST_F(ProcessTest, DriverThatThrows) {
  const pid_t driver =
      start_driver([&](WorkerPool&) { throw SystemError("no disk, no network, no hope"); });
  EXPECT_EQ(WEXITSTATUS(status_of(driver)), 98);
  EXPECT_TRUE(all_gone(mark_));
}

TEST_F(ProcessTest, WorkersHoldOnlyWhatIsTheirs) {
  const pid_t driver = start_driver([](WorkerPool& w) { w.next(); });
  wait_for_workers(3);
  for (const pid_t pid : marked_processes(mark_, "dg rank")) {
    int sockets = 0;
    char target[64] = {};
    for (int fd = 0; fd < 64; ++fd) {
      const std::string link = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
      const ssize_t n = readlink(link.c_str(), target, sizeof target - 1);
      if (n > 0) sockets += std::string(target, static_cast<std::size_t>(n)).starts_with("socket:");
    }
    EXPECT_EQ(sockets, 1) << "another's socket held open hides that other's end";
  }
  kill(driver, SIGTERM);
  status_of(driver);
  EXPECT_TRUE(all_gone(mark_));
}

}  // namespace
}  // namespace distgrad
