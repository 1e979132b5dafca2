#include "report/html_texts.h"

#include "report/valid_text.h"

namespace distgrad {

nlohmann::ordered_json SharedTexts::add(const std::string& text) {
  constexpr std::size_t kShort = 24;
  std::string valid = valid_text(text);
  if (valid.size() <= kShort) return valid;
  const auto [place, is_new] = numbers_.emplace(std::move(valid), texts_.size());
  if (is_new) {
    texts_.push_back(place->first);
    bytes_ += place->first.size();
  }
  return place->second;
}

}  // namespace distgrad
