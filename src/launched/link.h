// Encodes what rank 0's hub and the ranks' agents say to each other once they are connected. One
// stream carries the rank protocol's control and data sockets, and the board and the output.
//
// clang-format off
//   hub to agent                                   agent to hub
//   world\n{JSON}        where the others are      ready P\ntorch     a rank program has loaded
//   program P\n{JSON}    start a rank program      ended P\nhow       it is gone
//   drop P               end it                    forked W
//   fork W P RANK SIZE\nexec                       fork_failed W\nwhy
//   kill W               a worker                  exited W STATUS
//   close W              its socket                closed W
//   data W\nframe        to its socket             data W\nframe
//   board W\npatches     what other ranks wrote    board W\npatches   what it wrote
//   look W                                         seen W STATE WAITED_NS LOOKED\nplace
//   end CODE             exit with it              output W\ntext     the end of its output
//                                                  leaving SIGNAL
// clang-format on
//
// Each is a frame whose header is the words, a line end and the text, and whose payload is that of
// the relayed frame. "world" also has two numbers: the local rank and the local size.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/frame.h"

namespace distgrad {

struct LinkMessage {
  std::string kind;
  std::vector<std::int64_t> numbers;
  std::string text;
  std::span<const double> payload = {};
  std::shared_ptr<const void> keeper = {};  // of the payload

  // Returns the number at `place`; -1 where there is none.
  std::int64_t number(std::size_t place) const {
    return place < numbers.size() ? numbers[place] : -1;
  }
};

SharedFrame encode(const LinkMessage&);
std::optional<LinkMessage> decode_link(Frame frame);

}  // namespace distgrad
