#include "launched/hub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <set>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/exit_code.h"
#include "base/memory_file.h"
#include "launched/addresses.h"
#include "launched/board_mirror.h"
#include "launched/handshake.h"
#include "launched/hosts.h"
#include "launched/link.h"
#include "launched/lost_ranks.h"
#include "launched/secret.h"
#include "protocol/messages.h"
#include "protocol/payload.h"

namespace distgrad {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kProofNs = 10 * kSecond;     // for a connection to prove itself
constexpr std::size_t kMostPending = 256;           // connections that have not proven themselves
constexpr std::int64_t kLateNs = 30 * kSecond;      // for ranks that come after the end
constexpr std::int64_t kFarewellNs = 10 * kSecond;  // for the agents to end

class Hub {
 public:
  explicit Hub(UniqueFd driver) : driver_(std::move(driver)) {}

  int run() {
    while (!is_over_) turn();
    say_farewell();
    if (own_agent_ > 0) {
      kill(own_agent_, SIGKILL);  // it may not have heard, or may be stopped; its ranks end with it
      while (waitpid(own_agent_, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    return 0;
  }

 private:
  struct Agent {
    explicit Agent(Channel channel_) : channel(std::move(channel_)) {}
    Channel channel;
    JoiningRank who;
    std::string address;
    bool is_open = true;
    int left_by = 0;  // the signal by which it said that it ends
  };

  // Stands for one of the driver's zygotes.
  struct Program {
    Program(Channel control_, std::string start_)
        : control(std::move(control_)), start(std::move(start_)) {}
    Channel control;
    std::string start;  // the order that the agents get
    bool is_open = true;
    std::map<int, std::string> torch;                // by rank, for those that are ready
    std::map<std::uint64_t, std::uint64_t> workers;  // the driver's names to ours
  };

  struct Team {
    MappedMemory board;
    int world_size = 0;
    std::map<int, std::uint64_t> members;  // ids of workers by rank
    std::set<int> changed;                 // ranks whose changes others may wait for
  };

  struct Worker {
    Worker(Channel data_, UniqueFd output_) : data(std::move(data_)), output(std::move(output_)) {}
    int program = 0;
    std::uint64_t name = 0;  // the driver's name for it
    int rank = 0;            // its rank in its world
    int place = 0;           // the launcher's rank that runs it
    Channel data;
    UniqueFd output;
    std::shared_ptr<Team> team;
    bool is_open = true;     // whether its socket is open
    bool is_ending = false;  // whether the socket closes once all is sent
  };

  void turn() {
    flush_all();
    std::vector<pollfd> fds;
    std::vector<std::function<void()>> what;
    const auto watch = [&](const Channel& channel, bool is_open, std::function<void()> then) {
      if (!is_open) return;
      fds.push_back(
          {channel.fd(), static_cast<short>(channel.has_queued() ? POLLIN | POLLOUT : POLLIN), 0});
      what.push_back(std::move(then));
    };
    watch(driver_, driver_is_there_, [this] { hear_driver(); });
    if (listening_) {
      fds.push_back({listening_.get(), POLLIN, 0});
      what.push_back([this] { admit(); });
    }
    for (auto& pending : pending_) {
      fds.push_back({pending.door->fd(), POLLIN, 0});
      what.push_back([this, &pending] { hear_pending(pending); });
    }
    for (auto& [rank, agent] : agents_)
      watch(agent->channel, agent->is_open, [this, rank = rank] { hear_agent(rank); });
    for (auto& [id, program] : programs_)
      watch(program->control, program->is_open, [this, id = id] { hear_control(id); });
    for (auto& [id, worker] : workers_)
      watch(worker->data, worker->is_open, [this, id = id] { hear_data(id); });
    poll(fds.data(), fds.size(), timeout_ms());
    for (std::size_t i = 0; i < what.size(); ++i)
      if (fds[i].revents & ~POLLOUT) what[i]();
    pending_.remove_if(
        [](const PendingConnection& s) { return s.is_done || monotonic_ns() > s.until_ns; });
    look_at_clock();
  }

  int timeout_ms() const {
    if (lost_.any() && !is_loss_said_) return static_cast<int>(LostRanks::kTogetherNs / 1'000'000);
    return is_complete() ? 10'000 : 200;
  }

  void flush_all() {
    spread_boards();
    forget_ended();
    driver_.flush(Wait::kNo);
    for (auto& [rank, agent] : agents_)
      if (agent->is_open) agent->channel.flush(Wait::kNo);
    for (auto& [id, program] : programs_)
      if (program->is_open) program->control.flush(Wait::kNo);
    for (auto& [id, worker] : workers_) {
      if (!worker->is_open) continue;
      const bool failed = worker->data.flush(Wait::kNo) == Channel::Sent::kClosed;
      if (failed || (worker->is_ending && !worker->data.has_queued())) close_data(*worker);
    }
  }

  void close_data(Worker& worker) {
    worker.is_open = false;
    shutdown(worker.data.fd(), SHUT_RDWR);
  }

  // --- The driver ---

  void hear_driver() {
    const Channel::Received received = driver_.receive(Wait::kNo);
    for (NextFrame next = driver_.next(); !std::holds_alternative<NoFrameYet>(next);
         next = driver_.next()) {
      auto* frame = std::get_if<Frame>(&next);
      if (!frame) throw SystemError("the driver's message cannot be read");
      const Json json = parse_header(frame->header);
      const std::string& kind = read_text(field(json, "kind"));
      if (kind == "listen")
        begin(json, std::move(frame->fds.at(0)));
      else if (kind == "open")
        open(json, std::move(frame->fds.at(0)));
      else if (kind == "end")
        end(read_int(field(json, "code")));
    }
    if (received != Channel::Received::kClosed) return;
    driver_is_there_ = false;
    if (!is_over_ && ends_by_ns_ == 0) end(static_cast<int>(ExitCode::kBroken));
  }

  void begin(const Json& json, UniqueFd listening) {
    listening_ = std::move(listening);
    job_ = read_text(field(json, "job"));
    size_ = read_int(field(json, "size"), 1);
    secret_ = shared_secret();
    wait_until_ns_ = monotonic_ns() + read_integer(field(json, "wait_s"), 1, 1'000'000) * kSecond;
    LaunchedWorld own;
    own.size = size_;
    own.local_rank = read_int(field(json, "local_rank"));
    own.local_size = read_int(field(json, "local_size"));
    auto [ours, theirs] = make_socket_pair();
    own_agent_ = start_child({{"/proc/self/exe", kAgentWord}, {}, theirs.get(), -1});
    join(joining_rank_of(own), Channel(std::move(ours)), "");
  }

  void open(const Json& json, UniqueFd control) {
    const int id = ++last_program_;
    programs_.emplace(id,
                      std::make_unique<Program>(Channel(std::move(control)), header_text(json)));
    if (!loss_.empty()) return say(*programs_.at(id), ZygoteLost{loss_, true});
    if (is_complete())
      for (auto& [rank, agent] : agents_) start_program(id, rank);
  }

  void start_program(int id, int rank) { say(rank, {"program", {id}, programs_.at(id)->start}); }

  // Ranks that have not come yet must get the code, too, if the driver ends before they come, say
  // because of a bad option.
  void end(int code) {
    code_ = code;
    const bool was_interrupted = code > 128;
    if (is_complete() || was_interrupted || size_ == 0)
      is_over_ = true;
    else
      ends_by_ns_ = std::min(monotonic_ns() + kLateNs, wait_until_ns_);
  }

  // Waits until each agent has ended its ranks and then its connection.
  void say_farewell() {
    listening_.reset();
    for (auto& [rank, agent] : agents_)
      if (agent->is_open) agent->channel.queue(encode(LinkMessage{"end", {code_}, ""}));
    const std::int64_t end = monotonic_ns() + kFarewellNs;
    for (std::int64_t now = monotonic_ns(); now < end; now = monotonic_ns()) {
      std::vector<pollfd> fds;
      for (auto& [rank, agent] : agents_) {
        if (!agent->is_open) continue;
        if (agent->channel.flush(Wait::kNo) == Channel::Sent::kClosed) agent->is_open = false;
        Channel::Received received;
        while ((received = agent->channel.receive(Wait::kNo)) == Channel::Received::kSome)
          while (std::holds_alternative<Frame>(agent->channel.next())) {
          }
        if (received == Channel::Received::kClosed) agent->is_open = false;
        if (agent->is_open)
          fds.push_back(
              {agent->channel.fd(),
               static_cast<short>(agent->channel.has_queued() ? POLLIN | POLLOUT : POLLIN), 0});
      }
      if (fds.empty()) return;
      poll(fds.data(), fds.size(), static_cast<int>((end - now) / 1'000'000 + 1));
    }
  }

  // --- Ranks that come ---

  struct PendingConnection {
    std::unique_ptr<Admission> door;
    std::int64_t until_ns = 0;
    bool is_done = false;
  };

  bool is_complete() const {
    return size_ > 0 && agents_.size() == static_cast<std::size_t>(size_);
  }

  void admit() {
    UniqueFd socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket || pending_.size() >= kMostPending) return;
    watch_connection(socket.get());
    pending_.push_back({std::make_unique<Admission>(std::move(socket), job_, secret_),
                        monotonic_ns() + kProofNs, false});
  }

  void hear_pending(PendingConnection& pending) {
    const Admission::State state = pending.door->receive();
    pending.is_done = state != Admission::State::kWaiting;
    if (state != Admission::State::kProven) return;
    const JoiningRank& who = pending.door->who();
    if (const std::string why = why_unwelcome(who); !why.empty()) return pending.door->refuse(why);
    const std::string address = other_end(pending.door->fd()).host();
    JoiningRank known = who;
    join(std::move(known), pending.door->welcome(), address);
  }

  std::string why_unwelcome(const JoiningRank& who) const {
    const std::string ours = joining_rank_of({}).version;
    if (who.size != size_ || who.rank >= size_)
      return fmt::format("it is rank {} of {}, and rank 0 is of {}", who.rank, who.size, size_);
    if (agents_.contains(who.rank)) return fmt::format("rank {} is there already", who.rank);
    if (who.version != ours)
      return fmt::format("it is distgrad {}, and rank 0 is distgrad {}", who.version, ours);
    return {};
  }

  void join(JoiningRank who, Channel channel, const std::string& address) {
    const int rank = who.rank;
    auto agent = std::make_unique<Agent>(std::move(channel));
    agent->who = std::move(who);
    agent->address = address;
    agents_[rank] = std::move(agent);
    if (is_complete()) start_world();
  }

  void start_world() {
    const Address listens = own_end(listening_.get());
    std::string own = listens.host();
    for (auto& [rank, agent] : agents_)
      if (rank != 0 && listens.is_any()) {
        own = own_end(agent->channel.fd()).host();
        break;
      }
    listening_.reset();  // no more ranks are to come
    agents_.at(0)->address = own;
    std::vector<HostOfRank> hosts;
    for (auto& [rank, agent] : agents_) hosts.push_back({agent->who.host, agent->address});
    hosts_ = label_hosts(std::move(hosts));
    Json list = Json::array();
    for (const HostOfRank& host : hosts_)
      list.push_back({{"host", host.host}, {"address", host.address}});
    driver_.queue(PayloadWriter().finish({{"kind", "joined"}, {"hosts", std::move(list)}}));
    for (auto& [rank, agent] : agents_) {
      const auto [local_rank, local_size] = place_on_host(rank);
      const std::string store = rank == 0 ? own : where_it_found_us(rank);
      say(rank,
          {"world",
           {local_rank, local_size},
           header_text({{"listen", listens.host()}, {"store", store}, {"own", agent->address}})});
      for (auto& [id, program] : programs_) start_program(id, rank);
      for (LinkMessage& message : waiting_[rank]) say(rank, message);
    }
    waiting_.clear();
  }

  // Returns the address at which this rank has found rank 0.
  std::string where_it_found_us(int rank) const {
    return own_end(agents_.at(rank)->channel.fd()).host();
  }

  // Returns the local rank and the local size: what the launcher says, or else counts of ranks.
  std::pair<int, int> place_on_host(int rank) const {
    const JoiningRank& who = agents_.at(rank)->who;
    int before = 0, all = 0;
    for (int other = 0; other < size_; ++other) {
      if (hosts_[static_cast<std::size_t>(other)].host !=
          hosts_[static_cast<std::size_t>(rank)].host)
        continue;
      ++all;
      before += other < rank;
    }
    return {who.local_rank >= 0 ? who.local_rank : before,
            who.local_size > 0 ? who.local_size : all};
  }

  // --- The driver's zygotes ---

  void hear_control(int id) {
    Program& program = *programs_.at(id);
    const Channel::Received received = program.control.receive(Wait::kNo);
    for (NextFrame next = program.control.next(); !std::holds_alternative<NoFrameYet>(next);
         next = program.control.next()) {
      auto* frame = std::get_if<Frame>(&next);
      const Decoded<ZygoteRequest> request =
          frame ? decode_zygote_request(*frame) : Decoded<ZygoteRequest>{};
      if (!request.value)
        throw SystemError("the driver's request cannot be read: " + request.error);
      if (const auto* fork = std::get_if<ForkWorker>(&*request.value))
        fork_worker(id, *fork, std::move(frame->fds));
      else if (const auto* kill = std::get_if<KillWorker>(&*request.value))
        pass_on("kill", program, kill->worker);
      else
        pass_on("look", program, std::get<LookAtWorker>(*request.value).worker);
    }
    if (received != Channel::Received::kClosed) return;
    program.is_open = false;
    for (auto& [rank, agent] : agents_) say(rank, {"drop", {id}, ""});
  }

  void pass_on(const char* what, const Program& program, std::uint64_t name) {
    const auto found = program.workers.find(name);
    if (found == program.workers.end()) return;
    const auto worker = workers_.find(found->second);
    if (worker != workers_.end())
      say(worker->second->place, {what, {static_cast<std::int64_t>(found->second)}, ""});
  }

  void fork_worker(int program, const ForkWorker& request, std::vector<UniqueFd> fds) {
    if (fds.size() != 3) throw SystemError("a request to fork came without its descriptors");
    const int place = request.place < 0 ? request.rank : request.place;
    if (place >= size_)
      return say(
          *programs_.at(program),
          ForkFailed{request.worker,
                     fmt::format("there is no rank {} among the launcher's {}", place, size_)});
    const std::uint64_t id = ++last_worker_;
    auto worker = std::make_unique<Worker>(Channel(std::move(fds[0])), std::move(fds[2]));
    worker->program = program;
    worker->name = request.worker;
    worker->rank = request.rank;
    worker->place = place;
    worker->team = team_of(fds[1], request.world_size);
    worker->team->members[request.rank] = id;
    programs_.at(program)->workers[request.worker] = id;
    workers_[id] = std::move(worker);
    say(place, {"fork",
                {static_cast<std::int64_t>(id), program, request.rank, request.world_size},
                request.exec});
  }

  // Finds the team by the file of its board.
  std::shared_ptr<Team> team_of(const UniqueFd& board, int world_size) {
    struct stat status {};
    if (fstat(board.get(), &status) != 0) throw SystemError("a board has no file");
    std::weak_ptr<Team>& known = teams_[status.st_ino];
    std::shared_ptr<Team> team = known.lock();
    if (team) return team;
    team = std::make_shared<Team>();
    team->board = map_shared(board.get(), sizeof(Board));
    team->world_size = world_size;
    known = team;
    return team;
  }

  static Board& board_of(const Team& team) { return *reinterpret_cast<Board*>(team.board.get()); }

  void hear_data(std::uint64_t id) {
    Worker& worker = *workers_.at(id);
    const Channel::Received received = worker.data.receive(Wait::kNo);
    for (NextFrame next = worker.data.next(); !std::holds_alternative<NoFrameYet>(next);
         next = worker.data.next()) {
      auto* frame = std::get_if<Frame>(&next);
      if (!frame) throw SystemError("the driver's request cannot be read");
      say(worker.place, {"data",
                         {static_cast<std::int64_t>(id)},
                         std::move(frame->header),
                         frame->payload,
                         frame->keeper});
    }
    if (received != Channel::Received::kClosed) return;
    worker.is_open = false;
    say(worker.place, {"close", {static_cast<std::int64_t>(id)}, ""});
  }

  // --- The agents ---

  void say(int rank, const LinkMessage& message) {
    const auto agent = agents_.find(rank);
    if (!is_complete())
      waiting_[rank].push_back(message);
    else if (agent != agents_.end() && agent->second->is_open)
      agent->second->channel.queue(encode(message));
  }

  void say(Program& program, const ZygoteEvent& event) {
    if (program.is_open) program.control.queue(encode(event));
  }

  void hear_agent(int rank) {
    Agent& agent = *agents_.at(rank);
    // Reads all that is there first, so that an end does not hide what was said before it.
    Channel::Received received;
    while ((received = agent.channel.receive(Wait::kNo)) == Channel::Received::kSome)
      for (NextFrame next = agent.channel.next(); !std::holds_alternative<NoFrameYet>(next);
           next = agent.channel.next()) {
        auto* frame = std::get_if<Frame>(&next);
        std::optional<LinkMessage> message = frame ? decode_link(std::move(*frame)) : std::nullopt;
        if (!message) return lose(rank, "sent what cannot be read");
        take(rank, *message);
      }
    if (received != Channel::Received::kClosed) return;
    if (agent.left_by != 0) return lose(rank, "was ended by " + signal_description(agent.left_by));
    if (agent.channel.error() == 0 || agent.channel.error() == ECONNRESET)
      return lose(rank, "died");
    lose_silent(rank, agent.channel.error());
  }

  void take(int rank, LinkMessage& message) {
    const std::string& kind = message.kind;
    if (kind == "ready" || kind == "ended") return take_of_program(rank, message);
    if (kind == "leaving") {
      agents_.at(rank)->left_by = static_cast<int>(message.number(0));
      return;
    }
    const auto found = workers_.find(static_cast<std::uint64_t>(message.number(0)));
    if (found == workers_.end() || found->second->place != rank) return;
    Worker& worker = *found->second;
    if (kind == "data" && worker.is_open) {
      const std::span<const double> payload = message.payload;
      worker.data.queue(make_frame(message.text, {&payload, 1}));
    } else if (kind == "board") {
      if (apply_changes(board_of(*worker.team), worker.rank, message.text))
        worker.team->changed.insert(worker.rank);
    } else if (kind == "closed") {
      worker.is_ending = true;
    } else if (kind == "output") {
      show_output(worker, message.text);
    } else {
      take_event(found->first, worker, message);
    }
  }

  void take_of_program(int rank, const LinkMessage& message) {
    const auto found = programs_.find(static_cast<int>(message.number(0)));
    if (found == programs_.end() || !found->second->is_open) return;
    Program& program = *found->second;
    if (message.kind == "ended")
      return say(program, ZygoteLost{rank_text(rank) + ": " + message.text, false});
    program.torch[rank] = message.text;
    if (program.torch.size() < static_cast<std::size_t>(size_)) return;
    for (const auto& [other, torch] : program.torch)
      if (torch != program.torch.at(0))
        return say(program,
                   ZygoteLost{fmt::format("{} has torch {}, and {} has torch {}", rank_text(0),
                                          program.torch.at(0), rank_text(other), torch),
                              true});
    say(program, ZygoteReady{kProtocolVersion, program.torch.at(0)});
  }

  void take_event(std::uint64_t id, Worker& worker, const LinkMessage& message) {
    Program& program = *programs_.at(worker.program);
    if (message.kind == "forked") {
      say(program, WorkerForked{worker.name, 1});  // a process id means nothing on this machine
    } else if (message.kind == "fork_failed") {
      say(program, ForkFailed{worker.name, rank_text(worker.place) + ": " + message.text});
    } else if (message.kind == "seen") {
      WorkerSeen seen{worker.name, static_cast<char>(message.number(1)), message.number(2)};
      if (message.number(3) == 1) seen.at = message.text;
      say(program, seen);
    } else if (message.kind == "exited") {
      say(program, WorkerExited{worker.name, static_cast<int>(message.number(1))});
      if (worker.is_open) {
        worker.data.flush(Wait::kNo);
        worker.is_ending = true;
      }
      program.workers.erase(worker.name);
      ended_.push_back(id);
    }
  }

  // Writes the output to the driver's file. The driver reads its end when the worker has died or
  // hangs, and its position says where that is.
  static void show_output(const Worker& worker, const std::string& text) {
    clear_output(worker.output.get());
    std::string_view rest = text;
    while (!rest.empty()) {
      const ssize_t n = write(worker.output.get(), rest.data(), rest.size());
      if (n <= 0) return;
      rest.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  void spread_boards() {
    for (auto it = teams_.begin(); it != teams_.end();) {
      const std::shared_ptr<Team> team = it->second.lock();
      it = team ? std::next(it) : teams_.erase(it);
      if (!team || team->changed.empty()) continue;
      for (const auto& [rank, worker] : team->members) {
        BoardPatches patches;
        for (const int changed : team->changed)
          if (changed != rank) patches += public_part(board_of(*team), changed, team->world_size);
        const auto found = workers_.find(worker);
        if (!patches.empty() && found != workers_.end())
          say(found->second->place,
              {"board", {static_cast<std::int64_t>(worker)}, std::move(patches)});
      }
      team->changed.clear();
    }
  }

  // Forgets workers that have ended and whose sockets are read to the end.
  void forget_ended() {
    std::erase_if(ended_, [&](std::uint64_t id) {
      const auto worker = workers_.find(id);
      if (worker != workers_.end() && worker->second->is_open) return false;
      if (worker != workers_.end()) workers_.erase(worker);
      return true;
    });
  }

  // --- What goes wrong ---

  std::string rank_text(int rank) const {
    if (!agents_.contains(rank)) return fmt::format("rank {}", rank);
    return fmt::format("rank {} on {}", rank, host_of(rank));
  }

  void lose(int rank, const std::string& how) {
    agents_.at(rank)->is_open = false;
    lost_.add(rank, how, monotonic_ns());
  }

  void lose_silent(int rank, int error) {
    agents_.at(rank)->is_open = false;
    lost_.add_silent(rank, host_of(rank), error, monotonic_ns());
  }

  bool is_heard(const std::string& host) const {
    return std::any_of(agents_.begin(), agents_.end(), [&](const auto& agent) {
      return agent.second->is_open && host_of(agent.first) == host;
    });
  }

  void look_at_clock() {
    const std::int64_t now = monotonic_ns();
    if (ends_by_ns_ != 0 && (is_complete() || now > ends_by_ns_)) is_over_ = true;
    if (!is_loss_said_ &&
        lost_.is_due(now, [&](const std::string& host) { return is_heard(host); }))
      say_loss(lost_.text([&](int rank) { return host_of(rank); }));
    if (!is_loss_said_ && size_ > 0 && !is_complete() && now > wait_until_ns_)
      say_loss(absence_text());
  }

  void say_loss(const std::string& text) {
    is_loss_said_ = true;
    loss_ = text;
    driver_.queue(PayloadWriter().finish({{"kind", "lost"}, {"message", loss_}}));
    for (auto& [id, program] : programs_) say(*program, ZygoteLost{loss_, true});
  }

  std::string host_of(int rank) const {
    const std::size_t place = static_cast<std::size_t>(rank);
    return place < hosts_.size() ? hosts_[place].host : agents_.at(rank)->who.host;
  }

  std::string absence_text() const {
    std::vector<int> absent;
    for (int rank = 0; rank < size_; ++rank)
      if (!agents_.contains(rank)) absent.push_back(rank);
    return fmt::format("{} of the launcher's {} did not come to rank 0 at {}",
                       rank_spans_text(absent), size_, own_end(listening_.get()).text());
  }

  Channel driver_;
  UniqueFd listening_;
  std::string job_, secret_;
  int size_ = 0;
  std::int64_t wait_until_ns_ = 0;
  std::list<PendingConnection> pending_;
  std::map<int, std::unique_ptr<Agent>> agents_;     // by rank
  std::vector<HostOfRank> hosts_;                    // by rank, once all are there
  std::map<int, std::vector<LinkMessage>> waiting_;  // by rank, until all are there
  std::map<int, std::unique_ptr<Program>> programs_;
  std::map<std::uint64_t, std::unique_ptr<Worker>> workers_;
  std::vector<std::uint64_t> ended_;
  std::map<ino_t, std::weak_ptr<Team>> teams_;
  LostRanks lost_;
  std::string loss_;
  bool is_loss_said_ = false;
  pid_t own_agent_ = 0;
  int last_program_ = 0;
  std::uint64_t last_worker_ = 0;
  bool is_over_ = false;
  int code_ = 0;
  bool driver_is_there_ = true;
  std::int64_t ends_by_ns_ = 0;  // 0 where no end was asked for, or one at once
};

}  // namespace

int be_hub() {
  prctl(PR_SET_NAME, "dg hub");
  // Whoever ends the job ends the driver, and the driver's end ends this process.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  fcntl(kInheritedFd, F_SETFD, FD_CLOEXEC);
  raise_descriptor_limit();
  try {
    return Hub(UniqueFd(kInheritedFd)).run();
  } catch (const std::exception& e) {
    fmt::print(stderr, "distgrad: {}\n", e.what());
    return static_cast<int>(ExitCode::kBroken);
  }
}

}  // namespace distgrad
