// Keeps texts of an HTML report that many cases share once each, to be referred to by number.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

namespace distgrad {

class SharedTexts {
 public:
  // Returns a number, or the text itself if it is short. The text is made valid UTF-8.
  nlohmann::ordered_json add(const std::string& text);
  const std::vector<std::string>& all() const { return texts_; }
  std::size_t bytes() const { return bytes_; }  // of all of them

 private:
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<std::string> texts_;
  std::size_t bytes_ = 0;
};

}  // namespace distgrad
