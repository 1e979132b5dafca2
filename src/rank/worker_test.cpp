#include "rank/worker.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "base/memory_file.h"
#include "protocol/channel.h"

namespace distgrad {
namespace {

// The driver's end of a worker that runs in a child process. Its rank raises where the subject is
// "raise".
class WorkerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto [ours, theirs] = make_socket_pair();
    board_ = create_memory_file("board");
    output_ = create_output_file();
    ASSERT_EQ(ftruncate(board_.get(), sizeof(Board)), 0);
    child_ = fork();
    if (child_ == 0) {
      ours.reset();
      WorkerFunctions functions;
      functions.make_runner = [](int rank, int, Board*) -> RunCase {
        return [rank](const RunRequest& request, const ExpectedValues*) {
          if (request.subject == "raise") throw std::runtime_error("raised");
          RankResult result;
          result.loss = rank;
          return result;
        };
      };
      be_worker({WorkerRole::kRank, 2, 3, std::move(theirs), std::move(board_), std::move(output_)},
                functions);
    }
    theirs.reset();
    channel_.emplace(std::move(ours));
  }

  void TearDown() override {
    channel_.reset();
    EXPECT_EQ(exit_status(), 0);
  }

  void send(const std::string& subject) {
    RunRequest request;
    request.subject = subject;
    channel_->queue(encode_request(++last_id_, request));
    channel_->flush(Wait::kYes);
  }

  // Nothing when the worker has closed its end.
  std::optional<WorkReply> reply() {
    for (;;) {
      NextFrame next = channel_->next();
      if (auto* frame = std::get_if<Frame>(&next))
        return std::move(decode_reply(*frame).value.value());
      if (channel_->receive(Wait::kYes) == Channel::Received::kClosed) return std::nullopt;
    }
  }

  int exit_status() {
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = 0;
    return status;
  }

  pid_t child_ = 0;
  std::optional<Channel> channel_;
  UniqueFd board_, output_;
  std::uint64_t last_id_ = 0;
};

TEST_F(WorkerTest, AnswersInOrderAndEndsWithTheStream) {
  for (int i = 0; i < 3; ++i) send("");
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(reply().value().id, id);
}

// Its peers wait for it; that its connections close is how they learn of it.
TEST_F(WorkerTest, EndsAfterAnError) {
  send("raise");
  send("");
  const WorkReply first = reply().value();
  const RankError error = std::get<RankResult>(first.what).error.value();
  EXPECT_EQ(error.kind, ErrorKind::kException);
  EXPECT_EQ(error.rank, 2);
  EXPECT_EQ(error.message, "raised");
  EXPECT_FALSE(reply());
}

// Else a collective that one rank makes alone would be paired with one of the next case.
TEST_F(WorkerTest, BeginsNothingWhileAPeerIsInTheUsersCode) {
  const MappedMemory memory = map_shared(board_.get(), sizeof(Board));
  Board& board = *reinterpret_cast<Board*>(memory.get());
  send("library:layers.so:layers::gather");
  EXPECT_EQ(reply().value().id, 1u);
  board.ranks[0].case_id = 1;
  board.ranks[0].phase = Phase::kReply;
  board.ranks[1].case_id = 1;
  board.ranks[1].phase = Phase::kBackward;
  send("reference");
  usleep(20'000);
  EXPECT_EQ(board.ranks[2].case_id, 1u);
  board.ranks[1].phase = Phase::kReply;
  EXPECT_EQ(reply().value().id, 2u);
  send("reference");  // the last case was none of the user's: no need to wait
  EXPECT_EQ(reply().value().id, 3u);
}

TEST_F(WorkerTest, EndsAtARequestThatCannotBeRead) {
  channel_->queue(make_frame("{}", {}));
  channel_->flush(Wait::kYes);
  EXPECT_FALSE(reply());
  EXPECT_EQ(read_output(output_.get(), 100), "a request cannot be read: \"kind\" is missing\n");
}

}  // namespace
}  // namespace distgrad
