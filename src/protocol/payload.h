// How values stand in a message's JSON: tensors by their place in the frame's data, numbers so that
// none is lost, and readers that check everything. Included by the codecs only: nlohmann/json is
// costly to compile.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/array.h"
#include "protocol/expected_values.h"
#include "protocol/frame.h"

namespace distgrad {

using Json = nlohmann::json;

// A message that is not what the protocol says. Thrown by the readers below and caught where a
// message is decoded.
class BadMessage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Collects the tensors of one message. Their elements must live until finish(). The same elements
// in several tensors, as of a value that all ranks of a simulation have, are sent once.
class PayloadWriter {
 public:
  // Tensors that `known` holds, which the receiver has, are not sent: {"shape": [2, 3],
  // "expected_at": 12}.
  explicit PayloadWriter(const SharedPayload* known = nullptr) : known_(known) {}

  // {"shape": [2, 3], "at": 12}: it begins after 12 elements of the frame's data.
  Json array(const Array&);
  Json arrays(const std::vector<Array>&);  // a list of them
  Json numbers(std::span<const double>);   // a tensor of one dimension
  SharedFrame finish(const Json& header, std::vector<std::shared_ptr<const UniqueFd>> fds = {});

 private:
  std::size_t add(std::span<const double>);

  const SharedPayload* known_;
  std::vector<std::span<const double>> pieces_;
  std::map<std::pair<const double*, std::size_t>, std::size_t> large_;  // where each of them is
  std::size_t size_ = 0;                                                // elements
};

// The tensors of one message received.
class PayloadReader {
 public:
  explicit PayloadReader(const Frame& frame, const SharedPayload* known = nullptr)
      : frame_(frame), known_(known) {}
  Array array(const Json&) const;
  std::vector<Array> arrays(const Json&) const;
  std::vector<double> numbers(const Json&) const;

 private:
  const Frame& frame_;
  const SharedPayload* known_;
};

// A JSON number, or "nan", "inf", "-inf".
Json number(double);
double read_number(const Json&);

std::int64_t read_integer(const Json&, std::int64_t low, std::int64_t high);
inline int read_int(const Json& json, int low = std::numeric_limits<int>::min()) {
  return static_cast<int>(read_integer(json, low, std::numeric_limits<int>::max()));
}
std::uint64_t read_id(const Json&);
const std::string& read_text(const Json&);
bool read_bool(const Json&);
const Json& read_list(const Json&);  // the same, if it is a list

const Json& field(const Json& object, const char* name);           // must be there
const Json* optional_field(const Json& object, const char* name);  // null when absent

// A value that is not what it should be, as an error shows it.
std::string shown(const Json&);

// The text of a header, and back. Text that is not UTF-8 is made so.
std::string header_text(const Json&);
Json parse_header(const std::string&);

}  // namespace distgrad
