// What launchers say in the environment, how ranks prove that they belong together, and what is
// carried of a board.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <thread>

#include "base/error.h"
#include "launched/board_mirror.h"
#include "launched/handshake.h"
#include "launched/hosts.h"
#include "launched/link.h"
#include "launched/lost_ranks.h"
#include "launched/world.h"

namespace distgrad {
namespace {

using testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

std::optional<LaunchedWorld> world_of(const Environment& environment) {
  return launched_world([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(LaunchedWorld, IsToldByTorchrun) {
  Environment variables = {{"RANK", "3"},
                           {"WORLD_SIZE", "4"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "10.0.0.7"},
                           {"MASTER_PORT", "29500"}};
  const auto world = world_of(variables);
  ASSERT_TRUE(world);
  EXPECT_EQ(world->rank, 3);
  EXPECT_EQ(world->size, 4);
  EXPECT_EQ(world->local_rank, 1);
  EXPECT_EQ(world->meeting_host, "10.0.0.7");
  EXPECT_EQ(world->first_port, 29501);
  variables["LOCAL_WORLD_SIZE"] = "4";
  EXPECT_EQ(world_of(variables)->meeting_host, "127.0.0.1");
  variables["DISTGRAD_PORT"] = "40000";
  EXPECT_EQ(world_of(variables)->first_port, 40000);
  variables["RANK"] = "4";
  EXPECT_THROW(world_of(variables), UserError);
  variables["DISTGRAD_LAUNCHER"] = "none";
  EXPECT_FALSE(world_of(variables));
}

TEST(LaunchedWorld, HasOwnVariablesThatAreChecked) {
  Environment variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  EXPECT_EQ(world_of(variables)->wait_s, 240);
  variables["DISTGRAD_LAUNCH_TIMEOUT"] = "5";
  EXPECT_EQ(world_of(variables)->wait_s, 5);
  variables["DISTGRAD_LAUNCH_TIMEOUT"] = "abc";
  EXPECT_THROW(world_of(variables), UserError);
  EXPECT_THROW(world_of({{"DISTGRAD_LAUNCHER", "slrum"}}), UserError);
}

TEST(LaunchedWorld, IsToldByMpiAndSlurm) {
  const Environment mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_THROW(world_of(mpi), UserError);  // on which host rank 0 is nobody knows
  Environment with_address = mpi;
  with_address["MASTER_ADDR"] = "hosta";
  EXPECT_EQ(world_of(with_address)->meeting_host, "hosta");

  Environment slurm = {{"SLURM_JOB_ID", "7"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "2"},
                       {"SLURM_STEP_NUM_TASKS", "3"},
                       {"SLURM_STEP_NUM_NODES", "2"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                       {"SLURM_STEP_NODELIST", "n[07-08]"}};
  EXPECT_EQ(world_of(slurm)->local_size, 1);
  EXPECT_EQ(world_of(slurm)->meeting_host, "n07");
  slurm.erase("SLURM_STEP_ID");  // a batch script, of which there is one
  EXPECT_FALSE(world_of(slurm));
}

TEST(LaunchedWorld, OneRankIsNone) {
  EXPECT_FALSE(world_of({}));
  EXPECT_FALSE(
      world_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}));
}

TEST(Slurm, ItsListsAreRead) {
  EXPECT_EQ(first_host("n0"), "n0");
  EXPECT_EQ(first_host("login,n[1-2]"), "login");
  EXPECT_EQ(first_host("rack3-n[009-012,40],x"), "rack3-n009");
  EXPECT_EQ(first_host("r[1-2]n[3,5]"), "r1n3");
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_on_node("4", 1), 0);
}

// Both sides of a connection, each with its secret and job.
std::pair<bool, bool> met(const std::string& leader_secret, const std::string& secret,
                          const std::string& job) {
  auto [ours, theirs] = make_socket_pair();
  Admission door(std::move(ours), "job 1", leader_secret);
  bool welcomed = false;
  std::thread rank([&, socket = std::move(theirs)]() mutable {
    welcomed = ask_for_admission(std::move(socket), {2, 4, 0, 2, "n1", "1"}, job, secret, 5000)
                   .channel.has_value();
  });
  Admission::State state;
  while ((state = door.receive()) == Admission::State::kWaiting) std::this_thread::yield();
  const bool proven = state == Admission::State::kProven;
  if (proven) {
    EXPECT_EQ(door.who().rank, 2);
    door.welcome();
  }
  rank.join();
  return {proven, welcomed};
}

TEST(Handshake, LetsInWhoKnowsTheSecretOfTheJob) {
  EXPECT_EQ(met("a secret", "a secret", "job 1"), std::pair(true, true));
  EXPECT_EQ(met("a secret", "another", "job 1"), std::pair(false, false));
  EXPECT_EQ(met("a secret", "a secret", "job 2"), std::pair(false, false));
}

TEST(Handshake, ClosesOnWhoSendsAnythingElse) {
  auto [ours, theirs] = make_socket_pair();
  Admission door(std::move(ours), "job", "secret");
  const std::string text = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
  ASSERT_EQ(send(theirs.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(door.receive(), Admission::State::kRefused);
}

struct TwoBoards {
  TwoBoards()
      : here(new std::byte[sizeof(Board)](), [](std::byte* p) { delete[] p; }),
        there(std::make_unique<Board>()) {}
  Board& own() { return *reinterpret_cast<Board*>(here.get()); }
  MappedMemory here;
  std::unique_ptr<Board> there;
};

TEST(BoardMirror, CarriesWhatARankWrites) {
  TwoBoards boards;
  BoardWatch watch(boards.here, 3, 4);
  watch.changes();
  EXPECT_EQ(watch.changes(), "");
  boards.own().ranks[3].step = 2;
  boards.own().ranks[3].phase = Phase::kBackward;
  boards.own().ranks[3].case_id = 5;
  std::strcpy(boards.own().calls[3].text, "{\"kind\":\"all_reduce\"}");
  boards.own().calls[3].version = 2;
  boards.own().calls[3].waits = 1;
  const BoardPatches patches = watch.changes();
  EXPECT_FALSE(
      apply_changes(*boards.there, 2, patches));  // another rank's word of it counts for nothing
  EXPECT_EQ(boards.there->ranks[3].case_id, 0u);
  apply_changes(*boards.there, 3, patches);
  EXPECT_EQ(boards.there->ranks[3].step, 2);
  EXPECT_EQ(boards.there->ranks[3].case_id, 5u);
  EXPECT_STREQ(boards.there->calls[3].text, "{\"kind\":\"all_reduce\"}");
  EXPECT_EQ(boards.there->calls[3].waits, 1);
  boards.own().calls[3].waits = 0;  // without another version
  apply_changes(*boards.there, 3, watch.changes());
  EXPECT_EQ(boards.there->calls[3].waits, 0);
}

// The others wait for a rank to be through with a case. They must hear of it though nobody looked
// at the board while it was.
TEST(BoardMirror, ARankThatIsAtTheNextCaseIsThroughWithTheLast) {
  TwoBoards boards;
  BoardWatch watch(boards.here, 1, 4);
  RankSlot& slot = boards.own().ranks[1];
  slot.phase = Phase::kBackward;
  slot.case_id = 5;
  apply_changes(*boards.there, 1, watch.changes());
  slot.phase = Phase::kSync;
  EXPECT_FALSE(apply_changes(*boards.there, 1, watch.changes()));
  slot.phase = Phase::kReply;  // unseen
  slot.phase = Phase::kForward;
  slot.case_id = 6;
  EXPECT_TRUE(apply_changes(*boards.there, 1, watch.changes()));
  Board third{};
  apply_public_part(third, public_part(*boards.there, 1, 4));
  EXPECT_EQ(third.ranks[1].case_id, 6u);
}

TEST(Link, MessagesComeAsTheyWent) {
  FrameParser parser;
  const std::vector<double> payload = {1.5, -2};
  const SharedFrame sent = encode(LinkMessage{"data", {7, -1}, "{\"a\":\n1}", payload});
  std::copy(sent->bytes.begin(), sent->bytes.end(), parser.room(sent->bytes.size()).begin());
  parser.commit(sent->bytes.size());
  NextFrame next = parser.next();
  ASSERT_TRUE(std::holds_alternative<Frame>(next));
  const auto message = decode_link(std::get<Frame>(std::move(next)));
  ASSERT_TRUE(message);
  EXPECT_EQ(message->kind, "data");
  EXPECT_EQ(message->number(1), -1);
  EXPECT_EQ(message->number(2), -1);  // none
  EXPECT_EQ(message->text, "{\"a\":\n1}");
  EXPECT_EQ(std::vector<double>(message->payload.begin(), message->payload.end()), payload);
  EXPECT_FALSE(decode_link({"no line end", {}, {}, {}, {}}));
  EXPECT_FALSE(decode_link({"data x\n", {}, {}, {}, {}}));
}

TEST(Hosts, AreNamedSoThatTheyDiffer) {
  const auto same = label_hosts({{"vm", "127.0.0.1"}, {"vm", "127.0.1.1"}});
  EXPECT_EQ(hosts_text(same), "");
  const auto two =
      label_hosts({{"vm", "10.0.0.1"}, {"vm", "10.0.0.1"}, {"vm", "10.0.0.2"}, {"n3", "10.0.0.3"}});
  EXPECT_EQ(hosts_text(two), "ranks 0-1 on vm (10.0.0.1), rank 2 on vm (10.0.0.2), rank 3 on n3");
  EXPECT_EQ(rank_spans_text({0, 1, 2, 5}), "ranks 0-2 and 5");
}

TEST(LostRanks, AreReportedTogetherInTheirOrder) {
  const auto host_of = [](int rank) { return rank < 2 ? "a" : "b"; };
  LostRanks lost;
  EXPECT_FALSE(lost.is_due(1'000'000'000'000, [](const std::string&) { return true; }));
  lost.add(3, "died", 100);
  lost.add(0, "was ended by SIGTERM", 110);
  lost.add(1, "was ended by SIGTERM", 120);
  lost.add(2, "died", 130);
  EXPECT_EQ(lost.text(host_of), "ranks 2-3 on b died; ranks 0-1 on a were ended by SIGTERM");
  EXPECT_FALSE(lost.is_due(100, [](const std::string&) { return true; }));
  EXPECT_TRUE(lost.is_due(1'000'000'000, [](const std::string&) { return true; }))
      << "no host fell silent";
}

TEST(LostRanks, OfAHostThatFallsSilentTheOthersFollow) {
  LostRanks lost;
  lost.add_silent(3, "b", ETIMEDOUT, 100);
  const auto is_b = [](const std::string& host) { return host == "b"; };
  const auto none = [](const std::string&) { return false; };
  EXPECT_FALSE(lost.is_due(1'000'000'000, is_b)) << "rank 2 of it is still heard";
  EXPECT_TRUE(lost.is_due(1'000'000'000, none)) << "no rank of it is";
  EXPECT_TRUE(lost.is_due(10'000'000'000, is_b)) << "only so long";
  lost.add_silent(2, "b", ETIMEDOUT, 200);
  EXPECT_EQ(lost.text([](int) { return "b"; }),
            "ranks 2-3 on b are not heard any more: Connection timed out");
}

}  // namespace
}  // namespace distgrad
