// Reads and writes values in a message's JSON: tensors by their place in the frame's data, and
// numbers without loss. The readers check everything. Included by the codecs only, since
// nlohmann/json is costly to compile.
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

// Reports a message that is not as the protocol says. The readers below throw it, and the code that
// decodes a message catches it.
class BadMessage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Collects the tensors of one message. Their elements must live until finish(). Elements that
// several tensors share, such as a value that all ranks of a simulation have, are sent once.
class PayloadWriter {
 public:
  // Does not send tensors in `known`, which the receiver has, but writes {"shape": [2, 3],
  // "expected_at": 12}.
  explicit PayloadWriter(const SharedPayload* known = nullptr) : known_(known) {}

  // Writes {"shape": [2, 3], "at": 12}: the array begins after 12 elements of the frame's data.
  Json array(const Array&);
  Json arrays(const std::vector<Array>&);  // a list of them
  Json numbers(std::span<const double>);   // a tensor of one dimension
  SharedFrame finish(const Json& header, std::vector<std::shared_ptr<const UniqueFd>> fds = {});

 private:
  std::size_t add(std::span<const double>);

  const SharedPayload* known_;
  std::vector<std::span<const double>> pieces_;
  std::map<std::pair<const double*, std::size_t>, std::size_t> large_;  // the place of each of them
  std::size_t size_ = 0;                                                // elements
};

// Has the tensors of one received message.
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

// Writes a JSON number, or "nan", "inf" or "-inf".
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

// Shows, in an error, a value that is not what it should be.
std::string shown(const Json&);

// Convert a header to text and back. Text that is not UTF-8 is made so.
std::string header_text(const Json&);
Json parse_header(const std::string&);

}  // namespace distgrad
