// Runs one worker of an agent, a rank's process, and tells the hub what it has to hear.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/memory_file.h"
#include "base/unique_fd.h"
#include "launched/board_mirror.h"
#include "launched/link.h"
#include "pool/zygote_process.h"
#include "protocol/channel.h"

namespace distgrad {

class RemoteWorker {
 public:
  using Say = std::function<void(const LinkMessage&)>;

  // Asks the zygote, which must outlive this object, for the process.
  RemoteWorker(std::uint64_t id, ZygoteProcess& zygote, int rank, int world_size,
               const std::string& exec, Say say);

  ZygoteProcess& zygote() const { return zygote_; }
  std::uint64_t name() const { return name_; }  // the zygote's name for it
  int socket() const { return is_open_ ? data_.fd() : -1; }
  bool wants_to_write() const { return data_.has_queued(); }

  void request(std::string header, std::span<const double> payload);
  void close();
  void kill() { zygote_.kill_worker(name_); }
  void take_peers(const BoardPatches& patches);

  void on_forked(pid_t pid);
  void on_exited(int wait_status);
  void exchange();  // reads from and writes to its socket

  // Looks at the board while a case runs. Returns when to look again, the largest time for never.
  std::int64_t watch(std::int64_t now);
  void look();

 private:
  RemoteWorker(std::uint64_t id, ZygoteProcess& zygote, int rank, int world_size,
               const std::string& exec, Say say, std::shared_ptr<const UniqueFd> board,
               std::pair<UniqueFd, UniqueFd> sockets);
  bool send_board();  // returns whether anything had changed
  void send_output();
  void send_seen(bool looked, const std::string& at);

  std::uint64_t id_;
  ZygoteProcess& zygote_;
  Say say_;
  MappedMemory board_;
  BoardWatch watch_;
  std::shared_ptr<const UniqueFd> output_;
  Channel data_;
  bool is_open_ = true;
  std::uint64_t name_ = 0;
  pid_t pid_ = 0;
  std::int64_t unanswered_ = 0;
  std::int64_t interval_ns_ = 0;
  std::int64_t next_look_ns_ = 0;
  std::int64_t next_report_ns_ = 0;  // when to send output and state next
  long reported_output_ = 0;         // the position in it
};

}  // namespace distgrad
