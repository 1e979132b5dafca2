// The pool with ranks that do what the case tells them to (fake_rank.cpp).
#include "pool/worker_pool.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <limits>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory_file.h"
#include "pool/process_scan.h"

namespace distgrad {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A program with one input of this many elements, whose loss is a script for fake_rank.
Program scripted(int world_size, const std::string& script, double value = 1,
                 std::int64_t elements = 1) {
  Program program;
  program.world_size = world_size;
  program.loss.text = script;
  Input x;
  x.name = "x";
  x.value = Array({elements}, std::vector<double>(static_cast<std::size_t>(elements), value));
  program.inputs.push_back(std::move(x));
  program.steps.push_back({"start", "", Expression{"x", ""}});
  CollectiveCall call;
  call.kind = CollectiveKind::kAllReduce;
  program.steps.push_back({"y", "", call});
  program.steps.push_back({"z", "", call});
  return program;
}

RunRequest request(int world_size, const std::string& script, double value = 1,
                   std::int64_t elements = 1) {
  return {scripted(world_size, script, value, elements), "reference", "gloo",
          std::vector<double>(static_cast<std::size_t>(world_size), 1)};
}

class WorkerPoolTest : public testing::Test {
 protected:
  ~WorkerPoolTest() override {
    pool_.reset();
    EXPECT_TRUE(all_gone(mark_)) << "processes are left behind";
  }

  DistributedRun run(const RunRequest& r, double timeout_s = 20) {
    auto done = pool_->wait(pool_->run(r, timeout_s));
    return std::get<DistributedRun>(std::move(done->result));
  }
  DistributedRun run(int world_size, const std::string& script) {
    return run(request(world_size, script));
  }

  SimulationRun simulate(const std::string& script, double timeout_s = 20) {
    SimulateRequest r;
    r.program = scripted(2, script, 3);
    auto done = pool_->wait(pool_->simulate(r, timeout_s));
    return std::get<SimulationRun>(std::move(done->result));
  }

  std::vector<pid_t> ranks() { return marked_processes(mark_, "dg rank"); }
  bool ranks_become(std::size_t count) {
    for (int i = 0; i < 300 && ranks().size() != count; ++i) usleep(10'000);
    return ranks().size() == count;
  }

  std::string mark_ = mark_environment();
  std::optional<WorkerPool> pool_{std::in_place, WorkerPoolOptions{{{DISTGRAD_FAKE_RANK}}, 2}};
};

TEST_F(WorkerPoolTest, EveryRankAnswers) {
  for (const int world_size : {1, 2, 3, 7}) {
    const DistributedRun done = run(request(world_size, "", 5));
    EXPECT_FALSE(done.error);
    ASSERT_EQ(done.ranks.size(), static_cast<std::size_t>(world_size));
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(done.ranks[rank].loss, 5 + rank);
      EXPECT_EQ((*done.ranks[rank].gradients.at(0))[0], 5);
      EXPECT_EQ(done.ranks[rank].steps.at(1)[0], rank);
    }
    EXPECT_GT(done.elapsed_s, 0);
  }
}

TEST_F(WorkerPoolTest, RanksOfAnotherBackendAreNewProgramsOfTheirOwn) {
  RunRequest other = request(2, "*: print_origin", 7);
  other.backend = "nccl";
  other.device = "cuda";
  const DistributedRun executed = run(other);
  ASSERT_FALSE(executed.error) << executed.error->message;
  EXPECT_THAT(executed.output, testing::Each("executed\n"));
  EXPECT_EQ(executed.ranks.at(1).loss, 8);
  EXPECT_THAT(run(2, "*: print_origin").output, testing::Each("forked\n"));
  EXPECT_EQ(ranks().size(), 4U) << "a team for each";
  other.program.loss.text = "1: kill";
  EXPECT_EQ(run(other).error.value().kind, ErrorKind::kCrash);
  other.program.loss.text = "*: print_origin";
  EXPECT_THAT(run(other).output, testing::Each("executed\n"));
}

// Rank 1 holds something else, and of rank 2 nothing is expected: both send what they have.
TEST_F(WorkerPoolTest, RanksSendWhatIsNotAsExpected) {
  const std::vector<double> values = {5, 5, 5, 5, 5, 6};
  auto fd = std::make_shared<UniqueFd>(create_memory_file("expected"));
  const auto bytes = static_cast<ssize_t>(values.size() * sizeof(double));
  ASSERT_EQ(write(fd->get(), values.data(), static_cast<std::size_t>(bytes)), bytes);
  seal(fd->get());
  std::string error;
  const MappedMemory memory = map_sealed(fd->get(), static_cast<std::size_t>(bytes), &error);
  auto expected = std::make_shared<ExpectedValues>();
  const auto* first = reinterpret_cast<const double*>(memory.get());
  expected->payload = {fd, {first, values.size()}, memory};
  expected->gradients = {{Array({3}, first, memory), Array({3}, first + 3, memory), std::nullopt}};
  pool_->torch_version();  // ready by then, as after a simulation
  for (int i = 0; i < 2; ++i) {
    auto done = pool_->wait(pool_->run(request(3, "", 5, 3), 20, 0, expected));
    const auto run = std::get<DistributedRun>(std::move(done->result));
    ASSERT_FALSE(run.error) << run.error->message;
    for (const RankResult& rank : run.ranks)
      EXPECT_THAT(rank.gradients.at(0)->values(), testing::ElementsAre(5, 5, 5));
    EXPECT_EQ(run.ranks[0].gradients[0]->values().data(), first);
    EXPECT_NE(run.ranks[1].gradients[0]->values().data(), first + 3);
    EXPECT_NE(run.ranks[2].gradients[0]->values().data(), first);
  }
}

TEST_F(WorkerPoolTest, SixtyFourRanks) {
  const DistributedRun done = run(64, "");
  ASSERT_FALSE(done.error);
  EXPECT_EQ(done.ranks.at(63).loss, 64);
  EXPECT_EQ(ranks().size(), 64U);
}

TEST_F(WorkerPoolTest, FewDescriptorsAreRaisedToTheHardLimit) {
  pool_.reset();
  const rlimit low{64, 4096};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  pool_.emplace(WorkerPoolOptions{{{DISTGRAD_FAKE_RANK}}, 1});
  EXPECT_FALSE(run(64, "").error);
}

TEST_F(WorkerPoolTest, NoElementAndLargeTensors) {
  EXPECT_EQ(run(request(2, "", 1, 0)).ranks[1].gradients.at(0)->size(), 0);
  const std::int64_t million = 1'000'000;  // beyond what goes through the socket
  const DistributedRun done = run(request(3, "", 2, million));
  ASSERT_FALSE(done.error);
  for (const RankResult& rank : done.ranks) {
    ASSERT_EQ(rank.gradients.at(0)->size(), million);
    EXPECT_EQ((*rank.gradients[0])[million - 1], 2);
  }
  EXPECT_EQ(done.ranks[0].loss, 2.0 * million);
}

TEST_F(WorkerPoolTest, SimulationsAnswer) {
  const SimulationRun done = simulate("sim: print hello");
  EXPECT_FALSE(done.error);
  EXPECT_EQ(done.simulation.losses, (std::vector<double>{3, 3}));
  EXPECT_EQ(done.output, "hello\n");
}

TEST_F(WorkerPoolTest, ThousandRequestsAndTheirOwnAnswers) {
  std::map<Ticket, double> expected;
  for (int i = 0; i < 1000; ++i) {
    expected[pool_->run(request(4, "", i), 20)] = i;
    SimulateRequest s;
    s.program = scripted(2, "", -i);
    expected[pool_->simulate(s, 20)] = -i;
  }
  int completions = 0;
  while (auto done = pool_->next()) {
    ++completions;
    const double value = expected.at(done->ticket);
    if (const auto* run = std::get_if<DistributedRun>(&done->result)) {
      ASSERT_FALSE(run->error);
      for (int rank = 0; rank < 4; ++rank) ASSERT_EQ(run->ranks[rank].loss, value + rank);
    } else {
      ASSERT_EQ(std::get<SimulationRun>(done->result).simulation.losses.at(0), value);
    }
  }
  EXPECT_EQ(completions, 2000);
  EXPECT_EQ(pool_->outstanding(), 0U);
}

TEST_F(WorkerPoolTest, ManyLargeRequestsDoNotClogTheSockets) {
  for (int i = 0; i < 100; ++i) pool_->run(request(2, "", 1, 100'000), 20);  // 800 kB each, inline
  int completions = 0;
  while (auto done = pool_->next()) {
    EXPECT_FALSE(std::get<DistributedRun>(done->result).error);
    ++completions;
  }
  EXPECT_EQ(completions, 100);
}

TEST_F(WorkerPoolTest, OutputIsKeptByCaseAndRank) {
  pool_->prepare(2);
  std::vector<Ticket> tickets;
  for (const char* script : {"0: print a; 1: complain b", "", "1: print c"})
    tickets.push_back(pool_->run(request(2, script), 20));
  using Texts = std::vector<std::string>;
  std::vector<Texts> outputs;
  for (const Ticket t : tickets)
    outputs.push_back(std::get<DistributedRun>(pool_->wait(t)->result).output);
  EXPECT_EQ(outputs, (std::vector<Texts>{{"a\n", "b\n"}, {"", ""}, {"", "c\n"}}));
}

TEST_F(WorkerPoolTest, OutputIsBounded) {
  const Ticket ticket = pool_->run(request(1, "0: flood"), 1);
  pool_->wait(pool_->run(request(2, ""), 20));  // meanwhile
  struct stat output {};
  for (int i = 0; i < 100 && marked_processes(mark_, "dg rank 0/1").empty(); ++i) usleep(5'000);
  const std::string rank = std::to_string(marked_processes(mark_, "dg rank 0/1").at(0));
  for (int i = 0; i < 20 && pool_->outstanding() > 0; ++i) {
    usleep(10'000);
    if (stat(("/proc/" + rank + "/fd/1").c_str(), &output) != 0) break;
    ASSERT_LE(output.st_blocks * 512, 17 << 20)
        << "what prints without end must not fill the memory";
  }
  const auto done = std::get<DistributedRun>(pool_->wait(ticket)->result);
  EXPECT_EQ(done.error.value().kind, ErrorKind::kHang);
  EXPECT_EQ(done.output.at(0).size(), 64U << 10);
  EXPECT_THAT(done.output.at(0), HasSubstr("ff"));
}

TEST_F(WorkerPoolTest, MuchOutputInManyCases) {
  for (int i = 0; i < 5; ++i) {  // 10 MB each; the file holds 16
    const DistributedRun done = run(1, "0: print_mb 10; 0: print end " + std::to_string(i));
    EXPECT_FALSE(done.error);
    EXPECT_THAT(done.output.at(0), testing::EndsWith("end " + std::to_string(i) + "\n"));
  }
  struct stat output {};
  ASSERT_EQ(stat(("/proc/" + std::to_string(ranks().at(0)) + "/fd/1").c_str(), &output), 0);
  EXPECT_LT(output.st_blocks * 512, 1 << 20) << "the memory is given back";
}

// --- Errors ---

TEST_F(WorkerPoolTest, WhatARankRaises) {
  const DistributedRun done =
      run(3, "1: print before; 1: throw no backward; 0: hang; 2: throw Connection closed by peer");
  ASSERT_TRUE(done.error);
  EXPECT_EQ(done.error->kind, ErrorKind::kException);
  EXPECT_EQ(done.error->rank, 1);
  EXPECT_EQ(done.error->message, "no backward");
  EXPECT_EQ(done.output.at(1), "before\n");
  EXPECT_LT(done.elapsed_s, 2) << "the rank that waits for ever must not be waited for";
}

TEST_F(WorkerPoolTest, TheFirstToBeHeardOfNeedNotBeTheCause) {
  const DistributedRun done =
      run(3, "2: throw Connection closed by peer; 0: sleep_ms 50; 0: throw the cause; 1: hang");
  ASSERT_TRUE(done.error);
  EXPECT_EQ(done.error->rank, 0);
  EXPECT_EQ(done.error->message, "the cause");
}

TEST_F(WorkerPoolTest, ARankThatDies) {
  const DistributedRun done = run(2, "1: step 1; 1: backward; 1: print last words; 1: abort");
  ASSERT_TRUE(done.error);
  EXPECT_EQ(done.error->kind, ErrorKind::kCrash);
  EXPECT_EQ(done.error->rank, 1);
  EXPECT_EQ(done.error->step, "y");
  EXPECT_EQ(done.error->message,
            "killed by SIGABRT (aborted) in step y (all_reduce), backward; it wrote: last words");
  EXPECT_EQ(done.output.at(1), "last words\n");
}

TEST_F(WorkerPoolTest, ARankThatExits) {
  EXPECT_THAT(run(2, "0: exit 0").error.value().message, StartsWith("exited with status 0"));
  EXPECT_THAT(run(2, "0: exit 7").error.value().message, StartsWith("exited with status 7"));
}

TEST_F(WorkerPoolTest, AHangSaysWhoWaitsWhere) {
  const std::int64_t start = monotonic_ns();
  const DistributedRun done = run(request(3, "2: step 1; 2: forward; 2: hang"), 0.3);
  ASSERT_TRUE(done.error);
  EXPECT_EQ(done.error->kind, ErrorKind::kHang);
  EXPECT_EQ(done.error->rank, 2);
  EXPECT_EQ(done.error->message,
            "not done after 0.3 s: ranks 0, 1 have finished; rank 2 waits in step y (all_reduce), "
            "forward");
  EXPECT_LT(monotonic_ns() - start, 2'000'000'000);
  EXPECT_FALSE(run(3, "").error);
  EXPECT_TRUE(ranks_become(3)) << "the ranks that hang must be killed";
}

TEST_F(WorkerPoolTest, RanksThatDoNotGetConnectedForWantOfCoresAreTooMany) {
  const int ranks = 8 * static_cast<int>(std::thread::hardware_concurrency());
  const std::int64_t start = monotonic_ns();
  const DistributedRun done = run(request(ranks, "*: step 1; *: connect; *: spin"), 0.3);
  EXPECT_EQ(done.error.value().rank, -1);
  EXPECT_THAT(done.error.value().message,
              StartsWith(std::to_string(ranks) +
                         " ranks were not connected with each other after 0.3 s: fewer ranks"));
  const std::int64_t once = monotonic_ns();
  EXPECT_EQ(run(request(ranks, ""), 0.3).error.value().message, done.error->message)
      << "no other case waits as long again";
  EXPECT_LT(monotonic_ns() - once, (once - start) / 4);
  EXPECT_FALSE(run(request(ranks, ""), 30).error) << "with more time it is tried";
}

TEST_F(WorkerPoolTest, RanksThatWaitForEachOtherWithCoresToSpareAreNotTooMany) {
  const DistributedRun done = run(request(3, "*: step 1; *: connect; *: hang"), 0.3);
  EXPECT_EQ(done.error.value().rank, 0);
  EXPECT_THAT(done.error.value().message, HasSubstr("connecting to the other ranks"));
  EXPECT_THAT(done.error.value().message, Not(HasSubstr("--simulate")));
}

TEST_F(WorkerPoolTest, WhatTheRanksProgramTakesToComeIsNoPartOfTheCasesTime) {
  WorkerPoolOptions options{{{DISTGRAD_FAKE_RANK, "--slow", "1500"}}, 2};
  options.begin_s = 0.5;
  pool_.emplace(std::move(options));
  EXPECT_FALSE(run(request(3, ""), 0.5).error);
}

TEST_F(WorkerPoolTest, WhatASubjectTakesToBeImportedIsNoPartOfTheCasesTime) {
  std::vector<std::pair<std::string, double>> loaded;
  WorkerPoolOptions options{{{DISTGRAD_FAKE_RANK}}, 2};
  options.on_loading = [&](const std::string& subject, double seconds) {
    loaded.emplace_back(subject, seconds);
  };
  pool_.emplace(std::move(options));
  EXPECT_FALSE(run(request(3, "*: load; 1: sleep_ms 3000; *: sleep_ms 500; *: forward"), 2).error);
  ASSERT_FALSE(loaded.empty());
  EXPECT_EQ(loaded.back().first, "reference");
  EXPECT_GT(loaded.back().second, 0.2);
  // Afterwards it runs.
  const DistributedRun late = run(request(3, "*: load; *: sleep_ms 3000; *: forward; 1: hang"), 2);
  EXPECT_EQ(late.error.value().kind, ErrorKind::kHang);
  EXPECT_EQ(run(request(2, "*: load; 1: segv; *: hang"), 2).error.value().kind,
            ErrorKind::kSubject);
}

TEST_F(WorkerPoolTest, WhatARankWritesOnTheBoardDoesNotStopTheClock) {
  EXPECT_EQ(run(request(2, "*: forge_case; *: hang"), 0.3).error.value().kind, ErrorKind::kHang);
  EXPECT_EQ(run(request(2, "1: forge_start; *: hang"), 0.3).error.value().kind, ErrorKind::kHang);
}

TEST_F(WorkerPoolTest, ADeathIsNoticedThoughAnotherProcessHoldsTheSocket) {
  const DistributedRun done = run(request(2, "1: daemon; 1: kill; 0: hang"), 100);
  EXPECT_EQ(done.error.value().kind, ErrorKind::kCrash);
  EXPECT_EQ(done.error->rank, 1);
}

TEST_F(WorkerPoolTest, WhoEndsTheZygoteIsFoundOutAndTheOthersRun) {
  const Ticket before = pool_->run(request(2, ""), 100);
  const Ticket killer = pool_->run(request(2, "1: kill_zygote; *: hang"), 100);
  const Ticket after = pool_->run(request(2, ""), 100);
  EXPECT_FALSE(std::get<DistributedRun>(pool_->wait(before)->result).error);
  const RankError error = std::get<DistributedRun>(pool_->wait(killer)->result).error.value();
  EXPECT_EQ(error.kind, ErrorKind::kCrash);
  EXPECT_EQ(error.rank, -1);  // Nobody knows which rank did it.
  EXPECT_THAT(error.message, HasSubstr("twice, while this case ran, the process that starts the "
                                       "ranks ended: killed by SIGKILL"));
  EXPECT_FALSE(std::get<DistributedRun>(pool_->wait(after)->result).error);
}

TEST_F(WorkerPoolTest, ALimitThatWasStretchedIsSaid) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const RankError error = run(request(4 * cores, "*: spin"), 0.5).error.value();
  EXPECT_THAT(error.message, HasSubstr("not done after 0.5 s"));
  EXPECT_THAT(
      error.message,
      testing::ContainsRegex("it was given [0-9]+ s, as its processes waited [0-9]+ s for a core"));
}

TEST_F(WorkerPoolTest, AZygoteThatIsStoppedIsReplaced) {
  EXPECT_EQ(run(request(2, "1: stop_zygote; 1: exit 3"), 100).error.value().rank, 1);
  EXPECT_FALSE(run(request(3, ""), 100).error) << "for which new ranks are needed";
}

TEST_F(WorkerPoolTest, RanksOutOfStep) {
  const std::string script = "0: step 1; 1: step 2; *: forward; *: hang";
  EXPECT_EQ(run(request(2, script), 0.3).error.value().kind, ErrorKind::kDesync);
}

TEST_F(WorkerPoolTest, TheClockOfACaseStartsWhenItBegins) {
  const Ticket slow = pool_->run(request(1, "0: sleep_ms 600"), 5);
  const Ticket quick = pool_->run(request(1, ""), 0.3);
  EXPECT_FALSE(std::get<DistributedRun>(pool_->wait(quick)->result).error);
  EXPECT_FALSE(std::get<DistributedRun>(pool_->wait(slow)->result).error);
}

TEST_F(WorkerPoolTest, ACorruptReply) {
  const DistributedRun done = run(2, "1: garbage; 0: hang");
  EXPECT_EQ(done.error.value().kind, ErrorKind::kCrash);
  EXPECT_EQ(done.error->rank, 1);
  EXPECT_THAT(done.error->message, HasSubstr("a frame does not begin with DGF1"));
}

TEST_F(WorkerPoolTest, AReplyThatDoesNotFitTheProgram) {
  RunRequest r = request(2, "");
  r.subject = "misfit";
  EXPECT_THAT(run(r).error.value().message, HasSubstr("0 gradients for 1 inputs"));
}

TEST_F(WorkerPoolTest, ASimulatorThatDiesHangsOrRaises) {
  EXPECT_EQ(simulate("sim: segv").error.value().message,
            "killed by SIGSEGV (segmentation fault) in the simulation");
  EXPECT_EQ(simulate("sim: throw what").error.value().message, "what");
  const RankError hang = simulate("sim: hang", 0.3).error.value();
  EXPECT_EQ(hang.kind, ErrorKind::kHang);
  EXPECT_EQ(hang.rank, -1);
  EXPECT_FALSE(simulate("").error);
}

void expect_that_neighbours_are_neither_lost_nor_blamed(WorkerPool& pool) {
  std::map<Ticket, std::string> scripts;
  for (int i = 0; i < 60; ++i) {
    std::string script;
    if (i == 20) script = "1: abort";
    if (i == 30) script = "*: throw all of them";
    if (i == 40) script = "0: hang";
    if (i == 50) script = "1: exit 3";
    scripts[pool.run(request(2, script, i), 0.5)] = script;
  }
  std::map<std::string, int> kinds;
  while (auto done = pool.next()) {
    const auto& run = std::get<DistributedRun>(done->result);
    EXPECT_EQ(run.error.has_value(), !scripts.at(done->ticket).empty());
    if (!run.error) {
      EXPECT_EQ(run.ranks.at(0).loss, static_cast<double>(done->ticket - 1));
    }
    ++kinds[run.error ? std::string(name_of(run.error->kind)) : "none"];
    scripts.erase(done->ticket);
  }
  EXPECT_TRUE(scripts.empty());
  EXPECT_EQ(kinds, (std::map<std::string, int>{
                       {"none", 56}, {"crash", 2}, {"exception", 1}, {"hang", 1}}));
}

TEST_F(WorkerPoolTest, NeighboursOfAFailureAreNeitherLostNorBlamed) {
  expect_that_neighbours_are_neither_lost_nor_blamed(*pool_);
}

TEST_F(WorkerPoolTest, WhatAnEarlierCaseCausedIsNotBlamedOnALaterOne) {
  const Ticket poison = pool_->run(request(2, "0: poison"), 20);
  const Ticket victim = pool_->run(request(2, "0: fragile"), 20);
  EXPECT_FALSE(std::get<DistributedRun>(pool_->wait(victim)->result).error);
  EXPECT_FALSE(std::get<DistributedRun>(pool_->wait(poison)->result).error);
}

// Rank 1 is still in the first case when rank 0 raises in the second, ends, and takes its
// connections along.
TEST_F(WorkerPoolTest, WhatALaterCaseCausedIsNotBlamedOnAnEarlierOne) {
  const std::string slow_peer = "1: sleep_ms 50; 1: throw_if_passed Connection reset by peer";
  const Ticket first = pool_->run(request(2, slow_peer), 20),
               second = pool_->run(request(2, "0: throw bad"), 20);
  std::map<Ticket, DistributedRun> done;
  for (const Ticket ticket : {first, second})
    done[ticket] = std::get<DistributedRun>(pool_->wait(ticket)->result);
  EXPECT_FALSE(done[first].error) << done[first].error->message;
  ASSERT_TRUE(done[second].error);
  EXPECT_EQ(done[second].error->message, "bad");
}

// When the last rank has answered the first case, the others wait in the second, where they differ,
// too.
TEST_F(WorkerPoolTest, HowRanksDifferIsSaidOfTheCaseThatTheyDifferIn) {
  const std::string max_on_1 =
      "0: enter sum; 1: enter max; 2: enter sum; *: leave; 2: sleep_ms 100";
  const std::string min_on_0 = "0: enter min; 1: enter sum; *: sleep_ms 250; *: leave";
  for (const std::string end : {"", "; 2: throw Connection reset by peer"}) {
    const Ticket first = pool_->run(request(3, max_on_1 + end), 20);
    const Ticket second = pool_->run(request(3, min_on_0), 20);
    const auto done = std::get<DistributedRun>(pool_->wait(first)->result);
    ASSERT_TRUE(done.error);
    if (end.empty()) {
      EXPECT_EQ(done.error->rank, 1) << done.error->message;
    }
    EXPECT_NE(done.error->rank, 0) << done.error->message;
    EXPECT_THAT(done.error->message, Not(HasSubstr("min")));
    pool_->wait(second);
  }
}

// Nothing breaks, so that the ranks go on, and their replies to all three cases arrive together.
TEST_F(WorkerPoolTest, RanksThatDifferWithoutBreakingAreNotedInEachCase) {
  const std::string script = "0: enter sum; 1: enter max; *: leave";
  std::vector<Ticket> tickets;
  for (int i = 0; i < 3; ++i) tickets.push_back(pool_->run(request(2, script), 20));
  for (const Ticket ticket : tickets) {
    const auto done = std::get<DistributedRun>(pool_->wait(ticket)->result);
    ASSERT_TRUE(done.error);
    EXPECT_THAT(done.error->message, HasSubstr("rank 1 is in all_reduce max"));
  }
}

TEST_F(WorkerPoolTest, AnIdleRankThatDiesIsReplaced) {
  EXPECT_FALSE(run(2, "").error);
  kill(ranks().at(0), SIGKILL);
  EXPECT_FALSE(run(2, "").error);
  kill(ranks().at(1), SIGKILL);
  usleep(100'000);
  EXPECT_FALSE(run(2, "").error);
}

TEST_F(WorkerPoolTest, ARankThatIsKilledInTheMiddle) {
  const Ticket ticket = pool_->run(request(3, "*: sleep_ms 20000"), 30);
  while (ranks().size() < 3) pool_->next_if_any();
  kill(ranks().at(2), SIGKILL);
  const auto done = std::get<DistributedRun>(pool_->wait(ticket)->result);
  EXPECT_THAT(done.error.value().message, StartsWith("killed by SIGKILL (killed)"));
}

TEST_F(WorkerPoolTest, WhatARankStartedDiesWithIt) {
  EXPECT_EQ(run(2, "0: child; 1: throw up").error.value().message, "up");  // the rank is killed
  EXPECT_EQ(run(2, "0: child; 0: throw up").error.value().message, "up");  // it ends by itself
  EXPECT_THAT(run(2, "1: child; 1: abort").error.value().message, StartsWith("killed by SIGABRT"));
  EXPECT_FALSE(run(2, "").error);
  EXPECT_TRUE(ranks_become(2));
}

TEST_F(WorkerPoolTest, WorldSizesTakeTurns) {
  std::map<Ticket, int> sizes;
  for (int i = 0; i < 200; ++i) {
    const int size = 1 + i % 5;
    sizes[pool_->run(request(size, "", i), 20)] = size;
  }
  while (auto done = pool_->next()) {
    const auto& run = std::get<DistributedRun>(done->result);
    EXPECT_FALSE(run.error);
    EXPECT_EQ(run.ranks.size(), static_cast<std::size_t>(sizes.at(done->ticket)));
    sizes.erase(done->ticket);
  }
  EXPECT_TRUE(sizes.empty());
}

TEST_F(WorkerPoolTest, IdleRanksAreNotHoarded) {
  for (const int size : {16, 12, 10, 8}) EXPECT_FALSE(run(size, "").error);
  EXPECT_TRUE(ranks_become(8 + 10));
}

TEST_F(WorkerPoolTest, AKilledZygoteIsReplacedAndNoCaseIsBlamed) {
  std::vector<Ticket> tickets;
  for (int i = 0; i < 10; ++i) tickets.push_back(pool_->run(request(2, "*: sleep_ms 30", i), 20));
  pool_->wait(tickets[0]);
  kill(marked_processes(mark_, "dg zygote").at(0), SIGKILL);
  for (int i = 1; i < 10; ++i) {
    const auto done = std::get<DistributedRun>(pool_->wait(tickets[i])->result);
    EXPECT_FALSE(done.error);
    EXPECT_EQ(done.ranks.at(0).loss, i);
  }
}

// Each of the first zygotes does something else before it is ready: `first`, and `second`.
std::vector<std::string> fake_rank_after(const std::string& first, const std::string& second,
                                         const std::filesystem::path& folder) {
  return {"/bin/sh", "-c",
          "mkdir \"$0\" 2>/dev/null && { " + first +
              "; exec " DISTGRAD_FAKE_RANK " \"$@\"; }; mkdir \"$0/a\" 2>/dev/null && { " + second +
              "; }; exec " DISTGRAD_FAKE_RANK " \"$@\"",
          folder.string()};
}

TEST_F(WorkerPoolTest, AZygoteThatIsStoppedBeforeItIsReadyIsReplaced) {
  const auto folder = std::filesystem::temp_directory_path() / ("stopped-" + mark_);
  pool_.emplace(WorkerPoolOptions{{fake_rank_after("kill -STOP $$", "true", folder)}, 2});
  EXPECT_FALSE(run(request(2, ""), 100).error);
  std::filesystem::remove_all(folder);
}

TEST_F(WorkerPoolTest, AReplacementThatIsKilledWhileItStartsIsReplaced) {
  const auto folder = std::filesystem::temp_directory_path() / ("killed-" + mark_);
  pool_.emplace(WorkerPoolOptions{{fake_rank_after("true", "kill -KILL $$", folder)}, 2});
  EXPECT_FALSE(run(2, "").error);
  kill(marked_processes(mark_, "dg zygote").at(0), SIGKILL);
  EXPECT_FALSE(run(3, "").error);
  std::filesystem::remove_all(folder);
}

TEST_F(WorkerPoolTest, RanksIgnoreCtrlC) {
  EXPECT_FALSE(run(2, "").error);
  const std::vector<pid_t> before = ranks();
  for (const pid_t pid : before) kill(pid, SIGINT);
  usleep(50'000);
  EXPECT_FALSE(run(2, "").error);
  EXPECT_EQ(ranks(), before);
}

TEST_F(WorkerPoolTest, NothingToWaitFor) {
  const Ticket ticket = pool_->run(request(1, ""), std::numeric_limits<double>::infinity());
  const Ticket other = pool_->run(request(1, ""), 20);
  EXPECT_TRUE(pool_->wait(ticket));
  EXPECT_FALSE(pool_->wait(ticket)) << "it was taken";
  EXPECT_TRUE(pool_->wait(other));
  EXPECT_FALSE(pool_->next());
}

// A slow simulation is slow again: nobody waits for it twice.
TEST_F(WorkerPoolTest, ASimulationThatTakesTooLongIsNotTriedAgain) {
  const std::string path = testing::TempDir() + "distgrad_slow_simulations";
  std::filesystem::remove(path);
  EXPECT_FALSE(simulate("").error);
  const RankError hang = simulate("sim: count " + path + "; sim: hang", 0.3).error.value();
  EXPECT_EQ(hang.kind, ErrorKind::kHang);
  EXPECT_EQ(std::filesystem::file_size(path), 1u);
}

TEST_F(WorkerPoolTest, UrgentSimulationsGoFirst) {
  SimulateRequest r;
  r.program = scripted(2, "sim: sleep_ms 20");
  for (int i = 0; i < 60; ++i) pool_->simulate(r, 20);
  r.program = scripted(2, "");
  const Ticket urgent = pool_->simulate(r, 20, QueuePosition::kNext);
  ASSERT_TRUE(pool_->wait(urgent));
  int later = 0;
  while (pool_->next_if_any()) ++later;
  EXPECT_LT(later, 30);
}

class SideBySideTest : public WorkerPoolTest {
 protected:
  SideBySideTest() { pool_.emplace(WorkerPoolOptions{{{DISTGRAD_FAKE_RANK}}, 2, 3}); }
};

TEST_F(SideBySideTest, ACaseThatWaitsKeepsOneTeamOnly) {
  const Ticket slow = pool_->run(request(2, "*: sleep_ms 2000"), 20);
  for (int i = 0; i < 40; ++i) pool_->run(request(2, ""), 20);
  int sooner = 0;
  while (pool_->next()->ticket != slow) ++sooner;
  EXPECT_GE(sooner, 20);
  EXPECT_LT(sooner, 40)
      << "what was handed to the waiting team waits with it: else this proves nothing";
  while (pool_->next()) continue;
}

TEST_F(SideBySideTest, NoMoreTeamsThanAskedForAndNoneWithoutWork) {
  EXPECT_FALSE(run(2, "").error);
  EXPECT_EQ(ranks().size(), 2u);
  for (int i = 0; i < 100; ++i) pool_->run(request(2, "*: sleep_ms 5"), 20);
  while (pool_->next()) continue;
  EXPECT_EQ(ranks().size(), 6u);
}

TEST_F(SideBySideTest, NeighboursOfAFailureAreNeitherLostNorBlamed) {
  expect_that_neighbours_are_neither_lost_nor_blamed(*pool_);
}

// Poison on every team: a second run on one of them would fail again, and the victim be blamed.
TEST_F(SideBySideTest, ASecondRunIsAloneOnFreshRanks) {
  for (int i = 0; i < 6; ++i) pool_->run(request(2, "0: poison; *: sleep_ms 20"), 20);
  while (pool_->next()) continue;
  ASSERT_EQ(ranks().size(), 6u);
  EXPECT_FALSE(run(2, "0: fragile").error);
}

TEST(WorkshopStart, AProgramThatIsNotThere) {
  WorkerPool pool({{{"/nowhere/distgrad-rank"}}, 1});
  try {
    pool.torch_version();
    FAIL() << "it should have thrown";
  } catch (const SystemError& e) {
    EXPECT_STREQ(
        e.what(),
        "cannot run /nowhere/distgrad-rank: exited with status 127: No such file or directory");
  }
}

TEST(WorkshopStart, AProgramThatCannotLoad) {
  WorkerPool pool({{{DISTGRAD_FAKE_RANK, "--broken"}}, 1});
  pool.run(request(1, ""), 20);
  EXPECT_THAT([&] { pool.next(); }, testing::ThrowsMessage<SystemError>(
                                        HasSubstr("error while loading shared libraries")));
}

TEST(WorkshopStart, TheVersionOfTorch) {
  WorkerPool pool({{{DISTGRAD_FAKE_RANK}}, 1});
  EXPECT_EQ(pool.torch_version(), "0.0");
}

// Two programs: the ranks of one and the simulators of the other know nothing of each other.
TEST(WorkshopStart, ASecondRankProgram) {
  WorkerPool pool({{{DISTGRAD_FAKE_RANK}, {DISTGRAD_FAKE_RANK}}, 1});
  const Ticket first = pool.run(request(2, "", 1), 20, 0);
  const Ticket second = pool.run(request(2, "", 2), 20, 1);
  EXPECT_EQ(std::get<DistributedRun>(pool.wait(second)->result).ranks.at(0).loss, 2);
  EXPECT_EQ(std::get<DistributedRun>(pool.wait(first)->result).ranks.at(0).loss, 1);
}

}  // namespace
}  // namespace distgrad
