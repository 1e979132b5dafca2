// Runs a rank program without torch, for the tests of the pool. It does what the program's loss
// says: a list of clauses "WHO: ACTION [ARGUMENT]" separated by ';', where WHO is a rank, "sim" or
// '*' (everyone).
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/noted_call_json.h"
#include "rank/zygote.h"

namespace distgrad {
namespace {

bool was_executed = false;  // it is a new program, not a fork
bool poisoned = false;      // a case leaves it behind for the next one

std::uint64_t calls_entered = 0;
std::vector<NotedCall> entered_in_case;

struct Place {
  RankSlot* slot = nullptr;  // null: a simulator
  Board* board = nullptr;
  int rank = 0;
  int world_size = 0;
};

bool a_peer_is_in_a_later_case(const Place& place) {
  return std::any_of(std::begin(place.board->ranks), std::end(place.board->ranks),
                     [&](const RankSlot& peer) { return peer.case_id > place.slot->case_id; });
}

int integer(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void sleep_for_ever() {
  for (;;) pause();
}

// Leaves the rank's process group and keeps all its descriptors.
void be_daemon() {
  setsid();
  sleep_for_ever();
}

// Bypasses the handlers that sanitizers install.
void die_by(int signal) {
  ::signal(signal, SIG_DFL);
  raise(signal);
}

// Writes bytes that are no frame, without the worker's knowledge.
void write_garbage() {
  for (int fd = 3; fd < 64; ++fd) {
    struct stat file {};
    if (fstat(fd, &file) != 0 || !S_ISSOCK(file.st_mode)) continue;
    const std::string garbage(100, 'x');
    [[maybe_unused]] const ssize_t n = write(fd, garbage.data(), garbage.size());
  }
}

void print_megabytes(int count) {
  const std::string line(999'999, 'f');
  for (int i = 0; i < count; ++i) std::printf("%s\n", line.c_str());
}

// Notes that the rank enters an all_reduce of all ranks with that op, and waits in it.
void enter(std::string_view op, const Place& place) {
  ::signal(SIGUSR1, SIG_IGN);
  NotedCall call;
  call.kind = "all_reduce";
  call.op = op;
  call.group = "world";
  call.number = ++calls_entered;
  for (int rank = 0; rank < place.world_size; ++rank) call.ranks.push_back(rank);
  entered_in_case.push_back(call);
  call.recent = {call};
  call.entered[call.group] = call.number;
  CallSlot& note = place.board->calls[place.rank];
  note.version.fetch_add(1);
  const std::string text = write_note(call).dump();
  std::copy_n(text.c_str(), text.size() + 1, note.text);
  note.version.fetch_add(1);
  note.waits = 1;
}

void act(std::string_view action, std::string_view argument, const Place& place) {
  const std::string text(argument);
  if (action == "print")
    std::printf("%s\n", text.c_str());
  else if (action == "complain")
    std::fprintf(stderr, "%s\n", text.c_str());
  else if (action == "sleep_ms")
    usleep(static_cast<useconds_t>(integer(argument)) * 1000);
  else if (action == "throw")
    throw std::runtime_error(text);
  else if (action == "throw_if_passed" && a_peer_is_in_a_later_case(place))
    throw std::runtime_error(text);
  else if (action == "abort")
    std::abort();
  else if (action == "segv")
    die_by(SIGSEGV);
  else if (action == "kill")
    raise(SIGKILL);
  else if (action == "exit")
    std::exit(integer(argument));
  else if (action == "count")
    std::ofstream(text, std::ios::app) << '.';
  else if (action == "hang")
    sleep_for_ever();
  else if (action == "spin")
    for (volatile unsigned turns = 0;;) turns = turns + 1;
  else if (action == "garbage")
    write_garbage();
  else if (action == "flood")
    print_megabytes(1'000'000);
  else if (action == "print_origin")
    std::printf("%s\n", was_executed ? "executed" : "forked");
  else if (action == "print_mb")
    print_megabytes(integer(argument));
  else if (action == "poison")
    poisoned = true;
  else if (action == "fragile" && poisoned)
    std::abort();
  else if (action == "child" && fork() == 0)
    sleep_for_ever();
  else if (action == "daemon" && fork() == 0)
    be_daemon();
  else if (action == "kill_zygote")
    kill(getppid(), SIGKILL);
  else if (action == "stop_zygote")
    kill(getppid(), SIGSTOP);
  else if (action == "forge_case")
    place.slot->case_id = 1'000'000;
  else if (action == "forge_start")
    place.slot->started_ns = std::int64_t{1} << 62;
  else if (action == "enter")
    enter(argument, place);
  else if (action == "leave")
    place.board->calls[place.rank].waits = 0;
  else if (action == "step")
    place.slot->step = integer(argument);
  else if (action == "forward")
    place.slot->phase = Phase::kForward;
  else if (action == "backward")
    place.slot->phase = Phase::kBackward;
  else if (action == "connect")
    place.slot->phase = Phase::kConnect;
  else if (action == "load")
    place.slot->phase = Phase::kLoad;
}

void play(std::string_view script, const std::string& who, const Place& place) {
  while (!script.empty()) {
    const std::size_t end = std::min(script.find(';'), script.size());
    std::string_view clause = script.substr(0, end);
    script.remove_prefix(std::min(end + 1, script.size()));
    while (clause.starts_with(' ')) clause.remove_prefix(1);
    const std::size_t colon = clause.find(": ");
    if (colon == clause.npos) continue;
    const std::string_view name = clause.substr(0, colon);
    if (name != "*" && name != who) continue;
    clause.remove_prefix(colon + 2);
    const std::size_t space = std::min(clause.find(' '), clause.size());
    act(clause.substr(0, space), clause.substr(std::min(space + 1, clause.size())), place);
  }
}

double sum_of(const Program& program) {
  double sum = 0;
  for (const Input& input : program.inputs)
    if (const auto* array = std::get_if<Array>(&input.value))
      sum = std::accumulate(array->values().begin(), array->values().end(), sum);
  return sum;
}

Simulation simulate(const SimulateRequest& request) {
  play(request.program.loss.text, "sim", {});
  Simulation simulation;
  simulation.losses.assign(static_cast<std::size_t>(request.program.world_size),
                           sum_of(request.program));
  simulation.gradients.resize(request.weights.size());
  return simulation;
}

// Returns a loss that is the inputs' sum plus its own rank, and the inputs as gradients.
RankResult run_case(const RunRequest& request, int rank, Board* board,
                    const ExpectedValues* expected) {
  play(request.program.loss.text, std::to_string(rank),
       {&board->ranks[rank], board, rank, request.program.world_size});
  RankResult result;
  result.loss = sum_of(request.program) + rank;
  if (request.subject == "misfit") return result;
  for (const Input& input : request.program.inputs)
    if (input.requires_grad) result.gradients.emplace_back(std::get<Array>(input.value));
  for (const Step& step : request.program.steps)
    if (step.is_reported()) result.steps.push_back(Array::scalar(rank));
  if (expected)
    for (std::size_t i = 0; i < result.gradients.size(); ++i)
      result.gradients[i] =
          expected_or(std::move(*result.gradients[i]), expected->gradients, i, rank);
  return result;
}

WorkerFunctions functions() {
  WorkerFunctions f;
  f.torch = "0.0";
  f.takes_expected = true;
  f.simulate = simulate;
  f.make_runner = [](int rank, int, Board* board) -> RunCase {
    return [rank, board](const RunRequest& request, const ExpectedValues* expected) {
      return run_case(request, rank, board, expected);
    };
  };
  f.take_entered = [] { return std::exchange(entered_in_case, {}); };
  return f;
}

}  // namespace
}  // namespace distgrad

int main(int argc, char** argv) {
  // "--broken" stands for a program that cannot start, for instance because a library is missing.
  if (argc > 1 && std::strcmp(argv[1], "--broken") == 0) {
    std::fprintf(stderr, "error while loading shared libraries\n");
    return 127;
  }
  if (auto start = distgrad::worker_of_arguments(argc, argv)) {
    distgrad::was_executed = true;
    distgrad::be_worker(std::move(*start), distgrad::functions());
  }
  // "--slow MS" comes first, and stands for a program that loads for long.
  if (argc == 5 && std::strcmp(argv[1], "--slow") == 0) {
    usleep(static_cast<useconds_t>(distgrad::integer(argv[2])) * 1000);
    argc -= 2;
    argv += 2;
  }
  if (argc != 3 || std::strcmp(argv[1], "--zygote") != 0) return 2;
  distgrad::be_zygote(distgrad::integer(argv[2]), distgrad::functions());
}
